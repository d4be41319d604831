"""What the server does with time: edits, cancellation, refreshes, settings, trust."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tensorpoint.wire.shapes import ShapeTable
from tests.unit.lsp.clients import Client, connected
from tests.unit.lsp.documents import NET, PATH, URI, clash, net_table

REFRESHING = {
    "workspace": {
        "inlayHint": {"refreshSupport": True},
        "codeLens": {"refreshSupport": True},
        "diagnostics": {"refreshSupport": True},
    },
    "textDocument": {"diagnostic": {}},
}
ALL = [(10, ": f32[B, 3, H, W]"), (11, ": f32[B, 64, ceil(H/2), ceil(W/2)]")]


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOINT_RESIDENT", "0")


def run(body: Callable[[Client], Awaitable[None]], *args: Any, **options: Any) -> None:
    async def main() -> None:
        async with connected(*args, **options) as client:
            await body(client)

    asyncio.run(main())


def test_hints_come_from_probes_first_and_from_the_symbolic_pass_then() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == ALL  # without refreshes the answer waits
        assert [request.symbolic for request in client.tracer.requests] == [False, True]
        assert client.tracer.requests[0].text == NET
        assert client.tracer.requests[0].path == PATH

    run(body)


def shown_in(message: dict[str, Any]) -> list[Any] | None:
    """The diagnostics that a message publishes; the two passes of a trace publish them each."""
    published = message.get("method") == "textDocument/publishDiagnostics"
    return message["params"]["diagnostics"] if published else None


def test_it_is_said_once_why_each_trace_takes_long() -> None:
    async def body(client: Client) -> None:
        client.tracer.note = "the resident process did not start: no memory"
        client.open()
        assert await client.hints() == ALL
        client.change(NET + "# more\n", 2)
        assert await client.hints() == ALL
        said = [each for each in client.messages if each.get("method") == "window/logMessage"]
        assert [(each["params"]["type"], each["params"]["message"]) for each in said] == [
            (2, f"Each trace starts a process, without the resident one, and takes longer: {why}")
            for why in [client.tracer.note]
        ]

    run(body)


def test_a_client_with_refreshes_is_answered_at_once_and_told_later() -> None:
    async def body(client: Client) -> None:
        client.tracer.gate.clear()
        client.open()
        await client.until(lambda: bool(client.tracer.requests))
        assert await client.hints() == []
        client.tracer.gate.set()
        for method in ("inlayHint", "codeLens", "diagnostic"):
            await client.told(f"workspace/{method}/refresh")
        assert await client.hints() == ALL
        assert not any("publishDiagnostics" in str(message) for message in client.messages)

    run(body, REFRESHING)


def test_a_path_that_is_quoted_is_a_path_as_any() -> None:
    """And a client may quote it now so and now otherwise."""

    async def body(client: Client) -> None:
        client.open(uri="file:///a%20b%2Fc/n%C3%A9t.py")
        assert await client.hints("file:///a%20b%2fc/nét.py") == ALL
        told = await client.told("textDocument/publishDiagnostics")
        assert told["params"]["uri"] == "file:///a%20b%2Fc/n%C3%A9t.py"

    run(body)


def test_a_newer_text_ends_the_trace_of_an_older_one() -> None:
    async def body(client: Client) -> None:
        client.tracer.gate.clear()
        client.open()
        await client.until(lambda: len(client.tracer.requests) == 1)
        client.change(NET + "\n# more", 2)
        await client.until(lambda: len(client.tracer.requests) == 2)
        assert client.tracer.cancelled == client.tracer.requests[:1]
        assert client.tracer.requests[1].text.endswith("# more")

    run(body, REFRESHING)


def test_a_burst_of_edits_is_traced_once() -> None:
    async def body(client: Client) -> None:
        client.open()
        await client.until(lambda: len(client.tracer.requests) == 2)
        for version in range(2, 30):
            client.change(NET + "\n" * version, version)
        assert await client.hints() == ALL
        assert len(client.tracer.requests) == 4
        # Undo: a text that was traced before is not traced again.
        client.change(NET, 40)
        assert await client.hints() == ALL
        assert len(client.tracer.requests) == 4

    run(body, options={"shapes": {"delay": 50}})


def test_the_last_good_table_moves_with_the_text_while_it_is_broken() -> None:
    async def body(client: Client) -> None:
        client.open()
        await client.until(lambda: len(client.tracer.requests) == 2)
        client.tracer.answer = lambda request: ShapeTable(PATH, untraced=("line 1: invalid",))
        client.change("def broken(:\n" + NET.replace("self.conv(x)", "self.conv(x"), 2)
        await client.until(lambda: len(client.tracer.requests) == 3)
        assert await client.hints() == [(11, ALL[0][1]), (13, ALL[1][1])]
        report = await client.request("textDocument/diagnostic", textDocument={"uri": URI})
        assert report["items"] == []

    run(body, REFRESHING)


def test_why_there_are_no_shapes_is_said_once_and_faintly() -> None:
    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: "not within 10 s"
        client.open()
        told = await client.wait(
            lambda message: "diagnostics" in str(message) and message["params"]["diagnostics"]
        )
        [found] = told["params"]["diagnostics"]
        assert (found["severity"], found["code"]) == (4, "untraced")
        assert 'if __name__ == "__main__":' in found["message"]
        assert told["params"]["version"] == 1

    run(body)


def test_push_and_pull_say_the_same() -> None:
    seen: list[Any] = []

    async def push(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(diagnostics=(clash(),))
        client.open()
        told = await client.told("textDocument/publishDiagnostics")
        seen.append(told["params"]["diagnostics"])

    async def pull(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(diagnostics=(clash(),))
        client.open()
        report = await client.request("textDocument/diagnostic", textDocument={"uri": URI})
        seen.append(report["items"])

    run(push)
    run(pull, {"textDocument": {"diagnostic": {}}})
    assert seen[0] == seen[1] and seen[0][0]["message"] == "needs H % 2 == 0 (H = 225)"


def test_diagnostics_of_the_symbolic_pass_stay_while_probes_run_again() -> None:
    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(
            diagnostics=(clash(),) if request.symbolic else ()
        )
        client.open()
        await client.wait(lambda message: "needs H" in str(message))
        begun = len(client.messages)
        client.change(NET + "\n# more", 2)
        await client.until(lambda: len(client.tracer.requests) == 4)
        await client.told("textDocument/publishDiagnostics", begun)
        for message in client.messages[begun:]:
            if message.get("method") == "textDocument/publishDiagnostics":
                assert "needs H" in str(message)

    run(body)


def test_an_error_goes_as_soon_as_the_call_runs() -> None:
    """Before the symbolic pass, which an edit that breaks the syntax would end."""

    async def body(client: Client) -> None:
        failing = ShapeTable(PATH, diagnostics=(clash(),))
        client.tracer.answer = lambda request: failing
        client.open()
        await client.wait(lambda message: "needs H" in str(message))
        client.tracer.answer = lambda request: "killed" if request.symbolic else net_table()
        begun = len(client.messages)
        client.change(NET + "\n# mended", 2)
        await client.told("textDocument/publishDiagnostics", begun)
        assert "needs H" not in str(client.messages[begun:])

    run(body)


@pytest.mark.parametrize("calls", [True, False])
def test_diagnostics_that_nothing_stands_behind_any_more_go(calls: bool) -> None:
    """The symbolic pass fails, or there is nothing that it could look at."""

    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(
            diagnostics=(clash(),) if request.symbolic else ()
        )
        client.open()
        await client.wait(lambda message: "needs H" in str(message))
        table = net_table() if calls else ShapeTable(PATH)
        client.tracer.answer = lambda request: "killed" if request.symbolic else table
        client.change(NET + "\n# more", 2)
        await client.wait(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"]["version"] == 2
                and not message["params"]["diagnostics"]
            )
        )

    run(body)


def test_closing_takes_the_diagnostics_away() -> None:
    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(diagnostics=(clash(),))
        client.open()
        await client.wait(lambda message: "needs H" in str(message))
        begun = len(client.messages)
        client.notify("textDocument/didClose", textDocument={"uri": URI})
        await client.wait(lambda message: shown_in(message) == [], begun)
        assert await client.hints() == []
        assert [shown for each in client.messages if (shown := shown_in(each)) is not None][
            -1
        ] == []

    run(body)


def test_nothing_is_traced_in_a_workspace_that_is_not_trusted() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == []
        report = await client.request(
            "textDocument/hover", textDocument={"uri": URI}, position={"line": 4, "character": 7}
        )
        assert report is None
        assert client.tracer.requests == []

    run(body, options={"trusted": False})
    # The workspace itself can't say that it is trusted.
    run(
        body,
        {"workspace": {"configuration": True}},
        options={"tensorpoint": {"trusted": False}},
        configuration={"trusted": True},
    )


def test_settings_are_asked_for_and_asked_again_when_they_change() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == ALL[:1]
        asked = await client.told("workspace/configuration")
        [item] = asked["params"]["items"]
        assert item == {"scopeUri": "file:///project", "section": "tensorpoint"}
        await client.told("client/registerCapability")
        client.configuration = {"shapes": {"hints": {"arguments": False}}}
        begun = len(client.messages)
        client.notify("workspace/didChangeConfiguration", settings=None)
        await client.told("workspace/configuration", begun)
        assert await client.hints() == ALL[1:]
        client.configuration = {"shapes": {"hints": {"arguments": "yes"}}}
        client.notify("workspace/didChangeConfiguration", settings=None)
        told = await client.told("window/showMessage")
        assert '"tensorpoint.shapes.hints.arguments" is "yes"' in told["params"]["message"]

    capabilities = {
        "workspace": {
            "configuration": True,
            "didChangeConfiguration": {"dynamicRegistration": True},
        }
    }
    run(body, capabilities, configuration={"shapes": {"hints": {"targets": False}}})


def test_settings_that_are_pushed_are_taken() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == ALL
        settings = {"tensorpoint": {"shapes": {"enable": False}}}
        client.notify("workspace/didChangeConfiguration", settings=settings)
        assert await client.hints() == []

    run(body)


def test_switched_off_it_takes_its_diagnostics_away() -> None:
    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(diagnostics=(clash(),))
        client.open()
        await client.wait(lambda message: "needs H" in str(message))
        begun = len(client.messages)
        settings = {"tensorpoint": {"shapes": {"enable": False}}}
        client.notify("workspace/didChangeConfiguration", settings=settings)
        await client.wait(lambda message: shown_in(message) == [], begun)

    run(body)


def test_switched_off_it_asks_for_nothing_while_the_user_types() -> None:
    async def body(client: Client) -> None:
        client.open()
        for version in range(2, 5):
            client.change(NET + "\n" * version, version)
            assert await client.hints() == []
        assert "refresh" not in str(client.messages)

    run(body, REFRESHING, options={"shapes": {"enable": False}})


def test_changed_settings_are_told_once_for_all_files() -> None:
    async def body(client: Client) -> None:
        for name in "abc":
            client.open("import os\n", f"file:///project/{name}.py")
        assert await client.hints("file:///project/c.py") == []
        settings = {"shapes": {"codeLens": False}}
        client.notify("workspace/didChangeConfiguration", settings=settings)
        assert await client.hints("file:///project/c.py") == []
        methods = [message.get("method") for message in client.messages]
        assert methods.count("workspace/codeLens/refresh") == 1

    run(body, REFRESHING)


@pytest.mark.parametrize("inner", ["project/inner", "project/an%20inn%C3%A9r"])
def test_each_folder_has_its_own_settings(inner: str) -> None:
    folders = [{"uri": f"file:///{name}", "name": name} for name in ("project", inner)]

    async def body(client: Client) -> None:
        client.open()
        client.open(uri=f"file:///{inner}/net.py")
        await client.until(lambda: len(client.tracer.requests) == 4)
        scopes = [
            message["params"]["items"][0]["scopeUri"]
            for message in client.messages
            if message.get("method") == "workspace/configuration"
        ]
        assert scopes == ["file:///project", f"file:///{inner}"]

    run(
        body,
        {"workspace": {"configuration": True, "workspaceFolders": True}},
        workspaceFolders=folders,
    )


def test_a_change_of_a_dependency_traces_again() -> None:
    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: net_table(dependencies=("/project/parts.py",))
        client.open()
        registered = await client.told("client/registerCapability")
        [one] = registered["params"]["registrations"]
        assert {"globPattern": "**/*.py"} in one["registerOptions"]["watchers"]
        await client.until(lambda: len(client.tracer.requests) == 2)

        def changed(path: str) -> None:
            changes = [{"uri": f"file://{path}", "type": 2}]
            client.notify("workspace/didChangeWatchedFiles", changes=changes)

        changed("/project/other.py")
        changed("/project/parts.py")
        await client.until(lambda: len(client.tracer.requests) == 4)
        changed("/project/pyproject.toml")
        await client.until(lambda: len(client.tracer.requests) == 6)

    run(body, {"workspace": {"didChangeWatchedFiles": {"dynamicRegistration": True}}})


def save(client: Client, path: str) -> None:
    client.notify("textDocument/didSave", textDocument={"uri": f"file://{path}"})


def test_a_repaired_import_traces_again_what_could_not_be_imported() -> None:
    async def body(client: Client) -> None:
        client.tracer.answer = lambda request: ShapeTable(PATH, untraced=("No Head.",))
        client.open()
        assert await client.hints() == []
        client.tracer.answer = lambda request: net_table()
        save(client, PATH)  # itself: it is as it was
        assert await client.hints() == []
        save(client, "/project/parts.py")
        assert await client.hints() == ALL

    run(body, options={"shapes": {"delay": 0}})


def test_a_file_that_changes_during_the_first_trace_begins_it_again() -> None:
    async def body(client: Client) -> None:
        client.tracer.gate.clear()
        client.open()
        await client.until(lambda: len(client.tracer.requests) == 1)
        save(client, "/project/parts.py")
        await client.until(lambda: len(client.tracer.requests) == 2)
        assert len(client.tracer.cancelled) == 1

    run(body)


def test_an_answer_waits_for_the_newest_text() -> None:
    async def body(client: Client) -> None:
        client.tracer.gate.clear()
        client.open()
        await client.until(lambda: len(client.tracer.requests) == 1)
        number = client.ask("textDocument/codeLens", textDocument={"uri": URI})
        client.change(NET + "\n# more", 2)
        await client.until(lambda: len(client.tracer.requests) == 2)
        client.tracer.gate.set()
        assert (await client.answer(number))["result"]

    run(body)


def test_files_without_tensors_are_not_traced() -> None:
    async def body(client: Client) -> None:
        client.open("import os\n\nprint(os.name)\n")
        assert await client.hints() == []
        assert client.tracer.requests == []
        client.change(NET, 2)
        assert await client.hints() == ALL

    run(body)


def test_a_long_trace_shows_progress_that_ends() -> None:
    async def body(client: Client) -> None:
        client.tracer.gate.clear()
        client.open()
        begin = await client.told("$/progress")
        assert begin["params"]["value"]["title"] == "Shapes of net.py"
        client.tracer.gate.set()
        end = await client.wait(lambda message: '"kind": "end"' in str(message).replace("'", '"'))
        assert end["params"]["token"] == begin["params"]["token"]

    run(body, {"window": {"workDoneProgress": True}})


def test_a_request_can_be_cancelled() -> None:
    async def body(client: Client) -> None:
        client.tracer.gate.clear()
        client.open()
        number = client.ask(
            "textDocument/inlayHint",
            textDocument={"uri": URI},
            range={"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}},
        )
        await client.until(lambda: bool(client.tracer.requests))
        client.notify("$/cancelRequest", id=number)
        answer = await client.answer(number)
        assert answer["error"]["code"] == -32800
        # Others go on.
        client.tracer.gate.set()
        assert await client.hints() == ALL

    run(body)


def test_a_fault_in_the_tracer_is_said_and_survived() -> None:
    async def body(client: Client) -> None:
        def fail(request: object) -> ShapeTable:
            raise RuntimeError("boom")

        client.tracer.answer = fail
        client.open()
        told = await client.wait(lambda message: "boom" in str(message))
        assert told["params"]["diagnostics"][0]["severity"] == 4
        client.tracer.answer = lambda request: net_table()
        client.change(NET + "\n", 2)
        assert await client.hints() == ALL

    run(body)


def test_the_search_for_graph_breaks_can_be_cancelled() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == ALL
        client.tracer.gate.clear()
        number = client.ask(
            "workspace/executeCommand", command="tensorpoint.graphBreaks", arguments=[URI]
        )
        await client.until(lambda: client.tracer.requests[-1].breaks)
        client.notify("$/cancelRequest", id=number)
        assert (await client.answer(number))["error"]["code"] == -32800
        await client.until(lambda: bool(client.tracer.cancelled))

    run(body)


def test_graph_breaks_are_asked_for_by_command() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == ALL
        assert not any(request.breaks for request in client.tracer.requests)
        command = {"command": "tensorpoint.graphBreaks", "arguments": [URI]}
        assert await client.request("workspace/executeCommand", **command) == (
            "torch.compile finds none."
        )
        assert client.tracer.requests[-1].breaks and client.tracer.requests[-1].symbolic
        told = await client.told("window/showMessage")
        assert told["params"] == {
            "type": 3,
            "message": f"Graph breaks of {PATH.rpartition('/')[2]}: torch.compile finds none.",
        }
        # An answer about a text that is there no more is not shown: the new text is looked at.
        client.tracer.gate.clear()
        number = client.ask("workspace/executeCommand", **command)
        asked = len(client.tracer.requests)
        await client.until(lambda: len(client.tracer.requests) > asked)
        client.change(NET + "\n", 2)
        await client.until(lambda: len(client.tracer.requests) > asked + 1)
        client.tracer.gate.set()
        assert (await client.answer(number))["result"] == "torch.compile finds none."
        looked_at = [request.text for request in client.tracer.requests if request.breaks]
        assert looked_at == [NET, NET, NET + "\n"]

    run(body)


def test_plugins_are_those_that_are_set() -> None:
    async def body(client: Client) -> None:
        client.open()
        assert await client.hints() == ALL
        assert {request.plugins for request in client.tracer.requests} == {("shapes_of:plugin",)}

    run(body, None, {"shapes": {"plugins": ["shapes_of:plugin"]}})


def test_cells_of_a_notebook_are_traced_as_one() -> None:
    head, tail = NET.split("\n\n\n")
    cells = [f"file:///project/n.ipynb#{name}" for name in "abc"]
    texts = [f"%matplotlib inline\n{head}", "# text", tail]
    line = f"%matplotlib inline\n{head}\n".count("\n")

    async def body(client: Client) -> None:
        def answer(request: Any) -> ShapeTable:
            assert request.path == "/project/n.ipynb"
            assert request.text == f"\n{head}\n{tail}"
            return net_table(request.text)

        client.tracer.answer = answer
        kinds = (2, 1, 2)
        client.notify(
            "notebookDocument/didOpen",
            notebookDocument={
                "uri": "file:///project/n.ipynb",
                "notebookType": "jupyter-notebook",
                "version": 1,
                "cells": [
                    {"kind": kind, "document": uri} for kind, uri in zip(kinds, cells, strict=True)
                ],
            },
            cellTextDocuments=[
                {"uri": uri, "languageId": "python", "version": 1, "text": text}
                for uri, text in zip(cells, texts, strict=True)
            ],
        )
        assert line == 3
        assert await client.hints(cells[0]) == []
        assert await client.hints(cells[2]) == [(6, ALL[0][1]), (7, ALL[1][1])]

    run(body, {"notebookDocument": {"synchronization": {}}})


def test_tooltips_are_made_when_they_are_asked_for() -> None:
    async def body(client: Client) -> None:
        client.open()
        found = await client.request(
            "textDocument/inlayHint",
            textDocument={"uri": URI},
            range={"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}},
        )
        assert "tooltip" not in found[1]
        resolved = await client.request("inlayHint/resolve", **found[1])
        assert "probed" in resolved["tooltip"]["value"]

    run(body, {"textDocument": {"inlayHint": {"resolveSupport": {"properties": ["tooltip"]}}}})
