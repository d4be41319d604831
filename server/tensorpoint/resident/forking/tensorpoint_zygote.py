"""What a zygote is started with: `python FLAGS tensorpoint_zygote.py`, as the program would be.

Loads this folder as a package under a private name, so that `sys.path` has nothing of ours. Its
code says that it is frozen, which debuggers take as a sign that nobody wants to see it: frames of
it are below the program's first one.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

NAME = "_tensorpoint_forking"


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles from source, under the file name of a frozen module."""

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return compile(self.get_data(path), f"<frozen {fullname}>", "exec", dont_inherit=True)


class _Finder:
    """Finds the modules of the package in its folder."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        if package != NAME:
            return None
        file = os.path.join(FOLDER, f"{name or '__init__'}.py")
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_Loader(fullname, file),
            submodule_search_locations=None if name else [FOLDER],
        )


FOLDER = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    sys.meta_path.insert(0, _Finder)
    zygote = importlib.import_module(f"{NAME}.zygote")
    for part in ("child", "command", "debugger", "environment", "link", "program"):
        importlib.import_module(f"{NAME}.{part}")
    sys.meta_path.remove(_Finder)
    zygote.main()
