"""One file per watch: what it measures, its formula and source, its cost, its verdict."""
