"""What a value of the program looks like in an editor: its line, children, figures, origin.

Nothing here runs code of the program: no property, no `__repr__`, no `__getattr__`, no
`__torch_function__`. `debugger_values` puts it in the place of pydevd's own view.
"""
