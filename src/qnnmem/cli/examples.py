"""Examples for the help of every verb; in a checkout, they run in any order."""

from __future__ import annotations

_BINARY = "examples/small_htp.bin"
_MODEL = "examples/small.onnx"

EXAMPLES: dict[str, tuple[str, str]] = {
    "plan": (
        "qnnmem plan examples/tiny.eaix",
        f"qnnmem plan {_MODEL} --dim N=1 --budget scratch=64K",
    ),
    "prepare": (
        f"qnnmem prepare {_MODEL} --shape x=1x4x8x8 --quantize int8 -o small.bin",
        f"qnnmem prepare {_MODEL} --dim N=1 --backend htp --soc SM8650 -o small_htp.bin",
    ),
    "context-binary-generator": (
        f"qnnmem context-binary-generator --backend libQnnHtp.so --model {_MODEL} --dim N=1 "
        "--binary_file small --input_output_tensor_mem_type memhandle",
        f"qnnmem context-binary-generator --backend libQnnLpai.so --model {_MODEL} --dim N=1 "
        "--quantize int8 --binary_file small --output_dir made",
    ),
    "inspect": (
        "qnnmem inspect examples/small_lpai.bin",
        f"qnnmem inspect {_BINARY} --json",
    ),
    "fix": (
        f"qnnmem fix {_MODEL} --dim N=1 -o fixed",
        f"qnnmem fix {_MODEL} --dim N=1 --budget scratch=2K -o smaller",
    ),
    "report": (
        f"qnnmem report {_MODEL} --dim N=1 -o small.html",
        f"qnnmem report {_BINARY} examples/graph_limit.log -o both.html",
    ),
    "check": (
        "qnnmem check --config examples/budgets/qnnmem.toml",
        "qnnmem check --config examples/budgets/qnnmem.toml --also budgets.sarif",
    ),
    "diff": (
        "qnnmem diff examples/keyword_spotting.csv examples/anomaly_detection.csv",
        f"qnnmem diff {_BINARY} {_BINARY} --tolerance 1% --json",
    ),
    "serve": (
        "qnnmem serve",
        "qnnmem serve --port 0 --data bench --no-browser",
    ),
    "net-run": (
        "qnnmem net-run examples/small_lpai.bin --random-inputs 3",
        "qnnmem net-run examples/small_lpai.bin --random-inputs 3 --output_dir results",
    ),
    "check-client": (
        "qnnmem check-client -- ./lpai_client examples/small_lpai.bin",
        "qnnmem check-client --json -- ./lpai_client examples/small_lpai.bin scratch-misaligned",
    ),
    "watch": (
        "qnnmem watch -o trace.jsonl -- python app.py",
        "qnnmem watch --fail 'contextCreateFromBinary#2=1002' -- python app.py",
    ),
    "config": (
        "qnnmem config --backend lpai --mem-type tcm -o direct",
        "qnnmem config --backend lpai --target-env x86 --hw-ver v5_1 -o desk",
    ),
    "lint": (
        "qnnmem lint examples/lint/eaiParams_direct.json",
        "qnnmem lint examples/lint/eaiParams_direct.conf --strict --json",
    ),
    "lpai": (
        "qnnmem lpai rules R3",
        "qnnmem lpai selftest",
    ),
    "lpai choices": (
        "qnnmem lpai choices",
        "qnnmem lpai choices --json",
    ),
    "lpai headers": (
        "qnnmem lpai headers -o include",
        "qnnmem lpai headers -o include2 --lib lib",
    ),
    "lpai export-c": (
        "qnnmem lpai export-c examples/small_lpai.bin -o client.c",
        "qnnmem lpai export-c examples/small_lpai.bin --io scratch",
    ),
    "lpai rules": (
        "qnnmem lpai rules",
        "qnnmem lpai rules R3",
    ),
    "lpai selftest": (
        "qnnmem lpai selftest",
        "qnnmem lpai selftest --json",
    ),
    "fit": (
        f"qnnmem fit {_BINARY} --soc SM8650",
        f"qnnmem fit {_MODEL} --dim N=1 --soc SM8650 --soc SM8350",
    ),
    "footprint": (
        f"qnnmem footprint {_BINARY}",
        f"qnnmem footprint {_MODEL} --dim N=1 --soc SM8650 -v",
    ),
    "qmem": (
        f"qnnmem qmem {_BINARY}",
        f"qnnmem qmem {_BINARY} --run",
    ),
    "htp-worker": (
        f'export QNNMEM_HTP_WORKER="ssh box qnnmem htp-worker" && qnnmem fit {_BINARY}',
        "export QNNMEM_HTP_WORKER="
        '"docker run -i --rm --platform linux/amd64 qnnmem htp-worker" '
        f"&& qnnmem footprint {_BINARY}",
    ),
    "sweep": (
        f"qnnmem sweep {_MODEL} --soc SM8650 --vary N=1,2,4",
        f"qnnmem sweep {_MODEL} --soc SM8650 --vary N=1..64 --max N",
    ),
    "validate": (
        f"qnnmem validate {_MODEL} --dim N=1 --against cpu --soc SM8650",
        f"qnnmem validate {_MODEL} --dim N=1 --soc SM8650 --json",
    ),
    "place": (
        f"qnnmem place {_BINARY} {_BINARY}",
        f"qnnmem place {_BINARY} {_BINARY} --budget 16M -v",
    ),
    "llm": (
        "qnnmem llm llama-3.2-3b --soc SM8650",
        "qnnmem llm qwen3-4b --soc SM8750 --vary context=1024..16384",
    ),
    "socs": (
        "qnnmem socs",
        "qnnmem socs 'Snapdragon 8 Gen 3'",
    ),
    "doctor": (
        "qnnmem doctor examples/graph_limit.log",
        "qnnmem doctor examples --group-by cause",
    ),
    "explain": (
        "qnnmem explain 1002",
        "qnnmem explain 'graph prepare failed 13' -v",
    ),
    "kb": (
        "qnnmem kb find spill fill too small",
        "qnnmem kb show graph-over-limit",
    ),
    "kb list": (
        "qnnmem kb list --stage graph",
        "qnnmem kb list --cause mem_dsp_va --json",
    ),
    "kb show": (
        "qnnmem kb show graph-over-limit",
        "qnnmem kb show graph-over-limit --json",
    ),
    "kb find": (
        "qnnmem kb find spill fill too small",
        "qnnmem kb find 0x3ea --json",
    ),
    "kb check": (
        "qnnmem kb check",
        "qnnmem kb new my-entry && qnnmem kb check --kb my-entry.md",
    ),
    "kb new": (
        "qnnmem kb new heap-full",
        "qnnmem kb new heap-full -o heap-full.md --force",
    ),
    "provoke": (
        "qnnmem provoke op-over-vtcm --soc SM8650 -o failures",
        "qnnmem provoke bad-binary --soc SM8650 -o failures --json",
    ),
    "completion": (
        'eval "$(qnnmem completion bash)"',
        "qnnmem completion fish > qnnmem.fish",
    ),
}
# Examples that need the real HTP library to compile, load or run a model.
BY_THE_LIBRARY = tuple(
    example
    for verb, pair in EXAMPLES.items()
    for example in pair
    if verb in ("sweep", "provoke") or "--run" in example or {_MODEL, "--soc"} <= {*example.split()}
)
# Examples that run until they are stopped, or need a program that the checkout lacks.
ELSEWHERE = (*EXAMPLES["serve"], *EXAMPLES["check-client"], *EXAMPLES["watch"])
