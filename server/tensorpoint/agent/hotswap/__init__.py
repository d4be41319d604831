"""Edited functions get their new code while the program runs (`"hotSwap": true`).

`source` says what a file defines, `swap` puts what differs between two states of it into the
running program. Only functions are swapped: a module's lines and the bodies of
its classes have run, and running them again would make everything anew. What differs there is said.
"""
