"""PopTransformer's examples on this project's popart, compared with transformers.

    tests/conformance/poptransformer_models.py CHECKOUT [--examples gpt2 rwkv llama2]
                                                 [--configs sharding tp]

CHECKOUT is a checkout of graphcore/PopTransformer; nothing is downloaded. Each example runs its own
inference.py in a copy of its folder, with its own sharding.yaml (layers on several IPUs) and
tp.yaml (tensor parallel: parts of each layer on several replicas). Overrides on the command line,
as hydra takes them, name a small model with random weights, which is written to disk in the format
of transformers. The tokens that the example generates are compared with those of the same model in
transformers (PyTorch, float). Exits with 1 if an example fails or tokens in fp32 differ.

PopTransformer loads `custom_ops.so` at import, for operators that poprt has itself. An empty
library takes its place: `cc -shared -o custom_ops.so -x c /dev/null`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from children import Child, run_child
from report import make_console, make_table

WORDS = 96
"""Words of the vocabulary; the special tokens follow."""
PROMPT = (3, 17, 42, 8, 25, 60)
NUM_TOKENS = 16
"""Generated tokens that are compared."""
MAX_LENGTH = len(PROMPT) + NUM_TOKENS
MAX_SECONDS = 900.0
SEED = 3

Sizes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """An example: the names of its classes in transformers, the sizes of a small model, the
    overrides of each of its configurations, and the precisions that its graph can be built in."""

    config: str
    model: str
    sizes: Sizes
    overrides: Mapping[str, Sequence[str]]
    precisions: Sequence[str] = ("fp32", "fp16")


EXAMPLES = {
    "gpt2": Example(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.4},
        {
            "sharding": ["model.layer_per_ipu=[0,1,1,0]"],
            "tp": ["global_args.num_replicas=4", "global_args.batch_size=1"],
        },
    ),
    "rwkv": Example(
        "RwkvConfig",
        "RwkvForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 2, "context_length": 128},
        {
            "sharding": ["model.layer_per_ipu=[1,1]"],
            "tp": ["model.layer_per_ipu=[1,1]", "global_args.num_replicas=2"],
        },
        ("fp16",),  # its attention reads a variable that only this precision sets
    ),
    "llama2": Example(
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "initializer_range": 0.4,
        },
        {
            "sharding": ["model.layer_per_ipu=[0,1,1,0]"],
            "tp": ["model.layer_per_ipu=[1,1]", "global_args.num_replicas=4"],
        },
    ),
}
CONFIGS = ("sharding", "tp")


@dataclass(frozen=True, slots=True)
class Result:
    """What an example generated, or why it did not."""

    example: str
    config: str
    precision: str
    tokens: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()
    seconds_per_token: float = 0.0
    error: str = ""

    @property
    def equal(self) -> int:
        """Number of first tokens that are equal."""
        pairs = zip(self.tokens, self.expected, strict=False)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), len(self.tokens))


def write_model(example: Example, folder: Path) -> tuple[int, ...]:
    """Write a model with random weights and its tokenizer; return the tokens it generates."""
    transformers: Any = importlib.import_module("transformers")
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(SEED)
    words = write_tokenizer(folder)
    config = getattr(transformers, example.config)(
        vocab_size=words, bos_token_id=WORDS, eos_token_id=WORDS, **example.sizes
    )
    model = getattr(transformers, example.model)(config).eval()
    with torch.no_grad():  # biases are zero and norms one otherwise: they would hide a mistake
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    tokens = list(PROMPT)
    with torch.no_grad():
        while len(tokens) < MAX_LENGTH:
            logits = model(torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens[len(PROMPT) :])


def write_tokenizer(folder: Path) -> int:
    """Write a tokenizer whose words are numbers, and return the size of its vocabulary."""
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    names = [*(f"w{number}" for number in range(WORDS)), "[EOS]", "[PAD]"]
    words = tokenizers.models.WordLevel(dict(zip(names, range(len(names)), strict=True)), "[EOS]")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"eos_token": "[EOS]", "pad_token": "[PAD]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(
        folder
    )
    return len(names)


def copy_example(checkout: Path, name: str, folder: Path) -> Path:
    """Copy what an example needs, with an empty library of operators; return its folder."""
    shutil.copytree(checkout / "poptransformer", folder / "poptransformer")
    shutil.copytree(checkout / "examples" / name, folder / "examples" / name)
    library = folder / "custom_ops.so"
    subprocess.run(["cc", "-shared", "-o", library, "-x", "c", "/dev/null"], check=True)
    return folder / "examples" / name


def run_example(name: str, config: str, precision: str, checkout: Path, seconds: float) -> Result:
    """Run an example with a small model and one of its configurations; compare its tokens."""
    example = EXAMPLES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        expected = write_model(example, folder / "model")
        script = copy_example(checkout, name, folder)
        words = " ".join(f"w{token}" for token in PROMPT)
        overrides = [
            f"--config-name={config}",
            f"model.hf_model_name={folder / 'model'}",
            *example.overrides[config],
            f"model.max_length={MAX_LENGTH}",
            f"global_args.precision={precision}",
            f"inputs.input_string_list=['{words}']",
        ]
        child = run_inside(script, overrides, seconds)
    result = Result(name, config, precision, expected=expected)
    if child.status != 0:
        return replace(result, error=describe_end(child))
    return read_output(result, child.output)


def run_inside(folder: Path, overrides: list[str], seconds: float) -> Child:
    """Run an example's script in its folder."""
    session = Path(__file__).with_name("poptransformer_session.py")
    command = [sys.executable, str(session), "inference.py", *overrides]
    return run_child(["env", "-C", str(folder), *command], seconds, os.environ)


def read_output(result: Result, output: str) -> Result:
    """Return the result with the tokens and the modelled time that a script printed."""
    match = re.search(r"'output': \{'0': '([^']*)'", output)
    if match is None:
        return replace(result, error="the script printed no tokens")
    tokens = tuple(int(word[1:]) for word in match[1].split())
    clock = json.loads(output.splitlines()[-1])
    seconds = clock["cycles"] / clock["clock_hz"] / MAX_LENGTH
    return replace(result, tokens=tokens[len(PROMPT) :], seconds_per_token=seconds)


def describe_end(child: Child) -> str:
    """Return the last line of a script that failed."""
    if child.status is None:
        return f"took longer than {child.seconds:.0f} s"
    lines = [line for line in (child.output + child.errors).splitlines() if line.strip()]
    return f"status {child.status}: {lines[-1] if lines else ''}"


def print_results(results: list[Result]) -> None:
    """Print a row for each run, and the errors."""
    console = make_console()
    headings = ("example", "configuration", "precision", "equal tokens", "modelled us/token")
    table = make_table("PopTransformer beside transformers in float", *headings)
    for result in results:
        equal = f"{result.equal} of {len(result.expected)}"
        table.add_row(
            result.example,
            result.config,
            result.precision,
            "failed" if result.error else equal,
            "" if result.error else f"{result.seconds_per_token * 1e6:.1f}",
        )
    console.print(table)
    for result in results:
        if result.error:
            console.print(
                f"{result.example}, {result.config}, in {result.precision}: {result.error}",
                markup=False,
            )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkout", type=Path, help="checkout of graphcore/PopTransformer")
    add: Callable[..., Any] = parser.add_argument
    add("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES), help="(default: all)")
    add("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="(default: all)")
    seconds_help = "time that a run may take (default: %(default)g)"
    add("--seconds", type=float, default=MAX_SECONDS, help=seconds_help)
    return parser.parse_args()


def main() -> int:
    """Run the examples, and compare."""
    options = parse_options()
    checkout = options.checkout.resolve()
    if not (checkout / "poptransformer").is_dir():
        raise SystemExit(f"{checkout}: not a checkout of graphcore/PopTransformer")
    results = [
        run_example(name, config, precision, checkout, options.seconds)
        for name in options.examples
        for config in options.configs
        for precision in EXAMPLES[name].precisions
    ]
    print_results(results)
    wrong = [
        result
        for result in results
        if result.precision == "fp32" and result.tokens != result.expected
    ]
    return int(bool(wrong) or any(result.error for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
