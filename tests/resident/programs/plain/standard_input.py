import sys

print(repr(sys.stdin.read()), input.__name__)
