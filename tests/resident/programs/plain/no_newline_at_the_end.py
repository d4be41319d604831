import sys

sys.stdout.write("text")
sys.stderr.write("error")
