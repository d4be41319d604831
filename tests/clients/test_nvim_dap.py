"""nvim-dap in Neovim steps by layers, by its own commands.

Neither is installed by a package manager that the tests could ask: `nvim` is looked for on PATH,
nvim-dap where Neovim's plugin managers put it, or at `NVIM_DAP`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.running import BLOCKS, HERE, run
from tests.protocol.dap import line_of

#: Below Neovim's data folder: its own packages, lazy.nvim, vim-plug.
_PLUGINS = ("site/pack/*/*/nvim-dap", "lazy/nvim-dap", "plugged/nvim-dap")
#: The oldest that it was tried with.
_OLDEST = (0, 11)


def nvim() -> str:
    """Neovim, or a skip with the reason."""
    found = shutil.which("nvim")
    if found is None:
        pytest.skip("no Neovim: put nvim on PATH")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = said.split()[1].lstrip("v")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        pytest.skip(f"Neovim {version} is too old for nvim-dap")
    return found


def nvim_dap() -> Path:
    """The folder of nvim-dap, or a skip with the reason."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "nvim"
    given = os.environ.get("NVIM_DAP")
    folders = [Path(given)] if given else [at for name in _PLUGINS for at in data.glob(name)]
    found = next((at for at in folders if (at / "lua" / "dap.lua").is_file()), None)
    if found is None:
        pytest.skip("no nvim-dap: install it as a plugin or name its folder in NVIM_DAP")
    return found


def test_nvim_dap_steps_by_layers() -> None:
    # Without the user's configuration.
    command = [nvim(), "--headless", "-u", "NONE", "--cmd", f"set rtp^={nvim_dap()}"]
    told = json.loads(run(*command, "-l", HERE / "layers.lua").splitlines()[-1])
    deep = line_of(BLOCKS, "# a line three modules deep")
    mlp = line_of(BLOCKS, "h = self.up(x)") - 1
    block = line_of(BLOCKS, "# the forward of a block")
    layers = "layers of Net"
    # The line is that of the cursor: nvim-dap jumps to the frame of each stop.
    stops = [
        (
            stop["by"],
            stop["thread"],
            stop["frame"],
            stop["line"] if stop["file"] == BLOCKS.name else None,
        )
        for stop in told["stops"]
    ]
    assert stops == [
        ("breakpoint", "MainThread", "forward", deep),
        ("tp step layer", layers, "layers.0.mlp (Mlp)", deep),
        ("step_over", layers, "layers.0.mlp.act (ReLU) [entry]", None),
        ("step_out", layers, "layers.0.mlp (Mlp) [exit]", mlp),
        ("step_out", layers, "layers.0 (Block) [exit]", block),
        ("step_over", layers, "layers.1 (Block) [entry]", block),
        ("step_into", layers, "layers.1.norm (LayerNorm) [entry]", None),
        ("step_over", layers, "layers.1.mlp (Mlp) [entry]", mlp),
        ("tp step line", "MainThread", "forward", line_of(BLOCKS, "y = self.mlp(y)")),
        ("continue", "MainThread", "<module>", line_of(BLOCKS, "# the model is called")),
        ("tp step in", layers, "layers.0 (Block) [entry]", block),
        ("step_over", layers, "layers.1 (Block) [entry]", block),
        ("step_back", layers, "layers.0 (Block) [entry, replayed]", block),
    ]
    assert told["step_back"] == [True]
