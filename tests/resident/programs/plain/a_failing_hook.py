import sys

sys.excepthook = lambda *a: nothing
1 / 0
