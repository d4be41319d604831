import sys

print(sys.argv[1] == "b c")
print(ascii(chr(0xDC80)))
