import sys

sys.excepthook = lambda *a: print("hook", a[1])
1 / 0
