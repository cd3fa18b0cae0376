"""`qnnmem config`: a correct pair of config files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import OutputPath, form_options

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.lpai.config.settings import LpaiConfig

_UINT32 = (1 << 32) - 1


@click.command(no_args_is_help=True)
@click.option(
    "--backend",
    type=click.Choice(["lpai"]),
    default="lpai",
    show_default=True,
    help="The backend to configure.",
)
@click.option(
    "--mem-type",
    type=click.Choice(["ddr", "tcm"]),
    default="ddr",
    show_default=True,
    help="Memory of inputs, outputs and the model binary; tcm needs adsp and v6 or later.",
)
@click.option(
    "--target-env",
    type=click.Choice(["adsp", "arm", "x86"]),
    default="adsp",
    show_default=True,
    help="Where the model runs; adsp is direct mode.",
)
@click.option(
    "--hw-ver",
    type=click.Choice(["v4", "v5", "v5_1", "v6", "v7"]),
    default="v6",
    show_default=True,
    help="LPAI hardware version.",
)
@click.option(
    "--fps",
    type=click.IntRange(0, _UINT32),
    default=1,
    show_default=True,
    help="Inferences wanted each second.",
)
@click.option(
    "--ftrt-ratio",
    type=click.IntRange(0, _UINT32),
    default=10,
    show_default=True,
    help="How much faster than real time, in tenths.",
)
@click.option(
    "--client-type",
    type=click.Choice(["real_time", "non_real_time"]),
    default="real_time",
    show_default=True,
    help="real_time: finalize fails if the rate cannot be met.",
)
@click.option(
    "--affinity",
    type=click.Choice(["soft", "hard"]),
    default="soft",
    show_default=True,
    help="Whether the selected core is a wish or a must.",
)
@click.option(
    "--core-selection",
    type=click.IntRange(0, _UINT32),
    default=0,
    show_default=True,
    help="0 for any core, else one bit: 1 is core 0, 2 is core 1.",
)
@click.option(
    "--exclude-io", is_flag=True, help="Prepare without inputs and outputs inside scratch."
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=OutputPath(is_text=False),
    help="Folder to write the two files to.",
)
@click.option("--force", is_flag=True, help="Replace the two files if they exist.")
@form_options("qnnmem.written/1")
def config(
    backend: str,
    mem_type: str,
    target_env: str,
    hw_ver: str,
    fps: int,
    ftrt_ratio: int,
    client_type: str,
    affinity: str,
    core_selection: int,
    exclude_io: bool,
    output: str,
    force: bool,
    as_json: bool,
) -> int:
    """Write a tool file and its LPAI file, which `qnnmem lint` passes.

    With adsp they are eaiParams_direct.json and eaiParams_direct.conf, else lpaiParams.json and
    lpaiParams.conf. Both files appear or none.

    Exit codes: 0 written, 2 settings that contradict each other, or a file is in the way.
    """
    from pathlib import Path

    from qnnmem.atomic_file import folder_for_output, write_together
    from qnnmem.cli.output import write
    from qnnmem.lpai.config.settings import ExecuteSettings, LpaiConfig, PrepareSettings, make_pair

    del backend  # there is one choice, and naming it keeps scripts readable when there are more
    chosen = LpaiConfig(
        target_env,
        hw_ver,
        PrepareSettings(exclude_io=exclude_io),
        ExecuteSettings(fps, ftrt_ratio, client_type, affinity, core_selection, mem_type),
    )
    pair, folder = make_pair(chosen), Path(output)
    texts = {folder / pair.lpai_name: pair.lpai_text, folder / pair.tool_name: pair.tool_text}
    with folder_for_output(folder):
        write_together({path: text.encode() for path, text in texts.items()}, force=force)
    write(_told(chosen, folder, [*reversed(texts)], as_json), None, force=False)
    return 0


def _told(chosen: LpaiConfig, folder: Path, written: list[Path], as_json: bool) -> str:
    from qnnmem.atomic_file import shown
    from qnnmem.lpai.config.settings import run_command
    from qnnmem.results.files import written_result
    from qnnmem.results.schema import encode

    following = run_command(chosen, written[0].name)
    if as_json:
        return encode(written_result("config", written, following))
    direct = chosen.target_env == "adsp"
    mode = "direct mode on the aDSP" if direct else f"target {chosen.target_env}"
    memory = f", IO and model binary in {chosen.execute.mem_type.upper()}" if direct else ""
    lines = [f"LPAI {chosen.hw_version}, {mode}{memory}"]
    lines += [f"Wrote {shown(path)}" for path in written]
    lines += [f"next: from inside {shown(folder)}: {following}"]
    return "\n".join(lines) + "\n"
