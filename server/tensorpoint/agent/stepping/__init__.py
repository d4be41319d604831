"""Layer stepping: stops at the entries and exits of layers, as a debugger steps over lines."""
