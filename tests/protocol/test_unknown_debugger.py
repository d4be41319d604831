"""A debugpy whose inside is not what we know: values are its own then, and stops are ours still."""

from __future__ import annotations

from tests.conftest import Write
from tests.protocol.dap import Session, line_of
from tests.protocol.samples import GATE

#: Runs in the program's interpreter before debugpy does: the function that makes rows has another
#: signature once it is there.
ANOTHER_PYDEVD = """\
import importlib.machinery
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "_pydevd_bundle.pydevd_suspended_frames":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def run_and_rename(module):
            run(module)
            original = module._AbstractVariable.get_var_data

            def get_var_data(self, width=80, fmt=None, context=None, **more):
                return original(self, fmt=fmt, context=context, **more)

            module._AbstractVariable.get_var_data = get_var_data

        spec.loader.exec_module = run_and_rename
        return spec


sys.meta_path.insert(0, Finder())
"""


def test_values_are_debugpys_own_and_why_is_said_once(write: Write) -> None:
    program = write(GATE)
    path = str(write(ANOTHER_PYDEVD, "site/sitecustomize.py").parent)
    with Session() as session:
        session.launch(program, env={"PYTHONPATH": path}, resident=False)
        stopped = session.stopped()
        assert session.places(stopped)[1] == ("program.py", line_of(program, "# call gate"))
        reference = session.scopes(stopped)["Locals"]
        rows = session.request("variables", variablesReference=reference)["variables"]
        assert any(row["value"].startswith("tensor(") for row in rows)
        said = session.output("important") + session.output("console") + session.output("stderr")
        assert said.count("debugpy shows them by itself") == 1
        assert "get_var_data('self', 'width', 'fmt', 'context'" in said
        session.request("setExceptionBreakpoints", filters=[])
        session.resume(stopped)
        assert session.exit_code() == 0
