"""The language server: shapes in the editor before the program runs. Never imports torch."""
