"""Programs of transformers and of optimum-graphcore on this project's poptorch, beside PyTorch.

    tests/conformance/poptorch_programs.py [--only PATTERN ...] [--json FILE] [--seconds SECONDS]

Small models with random weights run unchanged through `poptorch.inferenceModel`; their results are
compared with the same models in PyTorch on the CPU, in float. Nothing is downloaded. The programs:

    transformers/CLASS   a model of transformers
    half/CLASS           the same in half
    optimum/CLASS        its version of optimum-graphcore, with an IPUConfig
    generate/CLASS       text generation of optimum-graphcore, with an encoder and a decoder
    pipeline/TASK        a pipeline of optimum-graphcore

Those of optimum-graphcore need version 0.7.1 in this environment, with transformers 4.29. Each
program runs in a process of its own. A difference is divided by the greatest expected value above
one; that of generated texts is the number of different words. Exits with 1 if a program fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import poptorch_families as families

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import make_console, make_table

CONTEXT = multiprocessing.get_context("forkserver")
MAX_SECONDS = 900.0
EXIT_SECONDS = 60.0
"""Time limit of the exit of a process that has closed its pipe."""
TOLERANCES = {"half": 1e-2, "generate": 0.0}
"""Greatest differences of kinds of programs, else TOLERANCE."""
TOLERANCE = 1e-5
TEXT_LENGTH = 8
"""Words of a generated text."""

TRANSFORMERS = (
    "BertForSequenceClassification",
    "RobertaForMaskedLM",
    "DistilBertForQuestionAnswering",
    "GPT2LMHeadModel",
    "ViTForImageClassification",
    "DebertaForSequenceClassification",
    "T5ForConditionalGeneration",
    "Wav2Vec2ForCTC",
    "ConvNextForImageClassification",
    "SwinForImageClassification",
    "CLIPTextModel",
)
HALF = ("BertForSequenceClassification",)
GENERATE = (
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "WhisperForConditionalGeneration",
)
PIPELINES = {
    "text-classification": "BertForSequenceClassification",
    "token-classification": "RobertaForTokenClassification",
    "fill-mask": "DistilBertForMaskedLM",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a program gave, or why it failed."""

    name: str
    difference: float = 0.0
    compile_seconds: float = 0.0
    modelled_seconds: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether the results are those of PyTorch."""
        limit = TOLERANCES.get(self.name.partition("/")[0], TOLERANCE)
        return not self.error and self.difference <= limit


def list_programs() -> list[str]:
    """Return the names of the programs that this environment can run."""
    names = [f"transformers/{name}" for name in TRANSFORMERS] + [f"half/{name}" for name in HALF]
    if importlib.util.find_spec("optimum") is None:
        return names
    names += [f"optimum/{cls.__name__}" for cls in read_registry()]
    names += [f"generate/{name}" for name in GENERATE]
    return names + [f"pipeline/{name}" for name in PIPELINES]


def read_registry() -> Mapping[Any, Any]:
    """Return optimum-graphcore's versions of the classes of transformers."""
    importlib.import_module("optimum.graphcore.models")
    modeling: Any = importlib.import_module("optimum.graphcore.modeling_utils")
    registry: Mapping[Any, Any] = modeling._PRETRAINED_TO_PIPELINED_REGISTRY
    return registry


def run_program(name: str) -> Result:
    """Run a program in this process."""
    kind, _, what = name.partition("/")
    if kind == "pipeline":
        return run_pipeline(name, what)
    if kind == "generate":
        return run_generation(name, what)
    return run_module(name, kind, what)


def run_module(name: str, kind: str, what: str) -> Result:
    """Run a model once, and compare all tensors that it returns."""
    poptorch: Any = importlib.import_module("poptorch")
    torch: Any = importlib.import_module("torch")
    cls = find_class(what, kind)
    model, inputs = families.make_model(cls), families.make_inputs(cls)
    with torch.no_grad():
        expected = model(**inputs, return_dict=True)
    options = poptorch.Options()
    if kind == "half":
        model.half()
    elif kind == "optimum":
        config = make_ipu_config(cls)
        model = to_pipelined(model, config).eval()
        model.parallelize()
        options = config.to_options(for_inference=True)
        options.setExecutionStrategy(poptorch.ShardedExecution())
    executor = poptorch.inferenceModel(model, options)
    start = time.monotonic()
    executor.compile(**inputs)
    seconds = time.monotonic() - start
    outputs = executor(**inputs)
    return Result(name, compare(expected, outputs), seconds, executor.getLatency()[2])


def find_class(name: str, kind: str) -> Any:
    """Return a class of models; some of those of optimum-graphcore are its own."""
    if kind == "optimum":
        return next(cls for cls in read_registry() if cls.__name__ == name)
    return getattr(importlib.import_module("transformers"), name)


def make_ipu_config(cls: Any, num_ipus: int = 1) -> Any:
    """Return a configuration that divides a family's layers over IPUs."""
    layers = families.FAMILIES[cls.config_class.__name__].layers
    graphcore: Any = importlib.import_module("optimum.graphcore")
    layers_per_ipu = [layers // num_ipus] * num_ipus
    return graphcore.IPUConfig(layers_per_ipu=layers_per_ipu, ipus_per_replica=num_ipus)


def to_pipelined(model: Any, config: Any) -> Any:
    """Return optimum-graphcore's version of a model."""
    modeling: Any = importlib.import_module("optimum.graphcore.modeling_utils")
    return modeling.to_pipelined(model, config)


def run_generation(name: str, what: str) -> Result:
    """Generate texts by an encoder and a decoder with its cache of keys and values."""
    cls = find_class(what, "")
    inputs = families.make_inputs(cls)
    del inputs["decoder_input_ids"]
    config = families.make_config(cls.config_class, use_cache=True)
    model = families.make_model(cls, config)
    words = {"max_length": TEXT_LENGTH, "num_beams": 1}
    expected = model.generate(**inputs, do_sample=False, **words)
    pipelined = to_pipelined(model, make_ipu_config(cls, 2))
    pipelined.parallelize(for_generation=True, use_cache=True, batch_size=families.BATCH, **words)
    tokens = pipelined.eval().generate(**inputs, do_sample=False, **words)
    executors = (pipelined.poptorch_encoder, pipelined.poptorch_decoder)
    seconds = sum(executor_.compilationTime().total_seconds() for executor_ in executors)
    rows = zip(expected.tolist(), tokens.tolist(), strict=True)
    wrong = sum(one != other for pair in rows for one, other in zip(*pair, strict=True))
    return Result(name, float(wrong), seconds, executors[1].getLatency()[2])


def run_pipeline(name: str, task: str) -> Result:
    """Run a pipeline on two texts of different lengths, and compare its scores."""
    pipelines: Any = importlib.import_module("optimum.graphcore.pipelines")
    transformers: Any = importlib.import_module("transformers")
    cls = find_class(PIPELINES[task], "")
    model, tokenizer = families.make_model(cls), families.make_tokenizer()
    texts = ["w7 w8 [MASK] w9", "w10 [MASK]"]
    expected = transformers.pipeline(task, model=model, tokenizer=tokenizer)(texts)
    runner = pipelines.pipeline(
        task,
        model=model,
        ipu_config=make_ipu_config(cls),
        tokenizer=tokenizer,
        fp16=False,
        padding="max_length",
        max_length=families.LENGTH,
    )
    answers = runner(texts)
    executor = runner.model
    seconds = executor.compilationTime().total_seconds()
    return Result(name, compare(expected, answers), seconds, executor.getLatency()[2])


def compare(expected: Any, found: Any) -> float:
    """Return the greatest difference of two structures of the same numbers.

    Raises:
        ValueError: If they do not hold as many tensors, tensors of other shapes, or finite ones.
    """
    differences = []
    for one, other in zip(iter_numbers(expected), iter_numbers(found), strict=True):
        if one.shape != other.shape:
            raise ValueError(f"expected shape {list(one.shape)}, found {list(other.shape)}")
        if not bool(one.isfinite().all()):
            raise ValueError(
                "the expected values are not finite: they can be compared with nothing"
            )
        scale = max(1.0, float(one.abs().max()))
        difference = float((one - other).abs().max()) / scale
        differences.append(math.inf if math.isnan(difference) else difference)
    return max(differences)


def iter_numbers(value: Any) -> Iterator[Any]:
    """Yield the tensors and numbers of a structure, in float."""
    torch: Any = importlib.import_module("torch")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from iter_numbers(item)
    elif not isinstance(value, str) and value is not None:
        yield torch.as_tensor(value).float()


def run_apart(name: str, seconds: float) -> Result:
    """Run a program in a process of its own, which is ended when it takes too long."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=send_result, args=(name, sender))
    process.start()
    sender.close()
    try:
        return (
            receiver.recv()
            if receiver.poll(seconds)
            else Result(name, error=f"took longer than {seconds:.0f} s")
        )
    except EOFError:
        process.join(EXIT_SECONDS)
        return Result(name, error=f"the process ended with status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def send_result(name: str, sender: Connection) -> None:
    """Run a program, and send its result."""
    try:
        result = run_program(name)
    except Exception as error:  # noqa: BLE001  # any failure of a program is a row of the table
        lines = str(error).strip().splitlines()
        result = Result(name, error=f"{type(error).__name__}: {lines[0] if lines else ''}")
    sender.send(result)


def print_results(results: Iterable[Result]) -> None:
    """Print a row for each program."""
    headings = ("program", "largest difference", "compile s", "modelled us", "")
    table = make_table("PopTorch programs beside PyTorch", *headings)
    for result in results:
        figures = (
            f"{result.difference:.1e}",
            f"{result.compile_seconds:.1f}",
            f"{result.modelled_seconds * 1e6:.1f}",
        )
        cause = "passed" if result.passed else result.error[:100] or "differs"
        table.add_row(result.name, *(("", "", "") if result.error else figures), cause)
    make_console().print(table, markup=False)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    only_help = "run only programs whose name contains one of these patterns"
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help=only_help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line for each program")
    seconds_help = "time that a program may take (default: %(default)g)"
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help=seconds_help)
    return parser.parse_args(arguments)


def main() -> int:
    """Run the programs, and print the table."""
    options = parse_options()
    CONTEXT.set_forkserver_preload(["poptorch", "torch.export", "torch.onnx", "transformers"])
    results = []
    for name in list_programs():
        if any(fnmatch(name, f"*{like}*") for like in options.only):
            results.append(run_apart(name, options.seconds))
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(results[-1])) + "\n")
    print_results(results)
    return int(not all(result.passed for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
