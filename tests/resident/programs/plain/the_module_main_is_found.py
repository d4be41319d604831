import __main__

value = 5
print(__main__.value)
