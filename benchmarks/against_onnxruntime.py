"""Comparison with a user's alternatives: small Python-backend models that call ONNX Runtime or
OpenVINO.

These models serve request by request, in fp32, on the original ONNX file. Every network is served
beside them in fp16 with partials in half and in float, in fp8, in fp32 and in fp32 on OpenVINO. All
get the same requests, the same batching and as many threads. The small models compute for less than
0.2 ms a row; all give them one thread, because there is nothing to share among more. `--real` takes
real models of models.json as well.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import inputs
import model_table
import report
import repository
import rounds
from compared import NETWORKS, PRECISIONS, compile_network, find_real
from inputs import Row
from rich.console import Console
from rounds import Comparison, Round, Subject
from tritonclient.grpc.model_config_pb2 import ModelConfig

SERVED = [name for name in NETWORKS if not name[-1].isdigit() or name == "resnet50"]
"""Networks of one row, whose requests are joined if they arrive together."""
SMALL = ("mlp", "convnet")
LARGE = ("resnet50", "bert_base")
"""Networks that are measured with one request at once: joining rows gains nothing."""
RIVALS = {"onnxruntime": repository.ONNXRUNTIME, "openvino": repository.OPENVINO}
REAL = (
    "basic_pitch",
    "captcha_crnn",
    "deepcut",
    "dnsmos_p808",
    "eeg_seizure_a",
    "g2p_bert",
    "light_shufflenet",
    "light_squeezenet",
    "open_nsfw",
    "ppocrv2_cls",
    "ppocrv4_det",
)
"""Real models of `--real` without names: of many kinds, without inputs that poprt fixes, and fast
enough to be measured."""
NUM_ROWS = 8
"""Requests that differ; perf_analyzer sends them in turn."""


@dataclass(frozen=True, slots=True)
class Case:
    """Models that answer the same: ONNX Runtime's and OpenVINO's, and those by precision."""

    name: str
    rivals: tuple[ModelConfig, ...]
    served: dict[str, ModelConfig]
    rows: list[Row]


def write_case(folder: Path, name: str, threads: int, options: argparse.Namespace) -> Case:
    """Write the models of a network to `folder`/models. `threads` 0: the cores."""
    models, sources = folder / "models", folder / "sources"
    sources.mkdir(parents=True)
    network = NETWORKS[name](sources) if name in NETWORKS else find_real(name)
    threads = threads or (1 if name in SMALL else 0)
    served = {}
    for precision in options.precisions:
        config = repository.read_config(
            compile_network(network, precision, models / f"{name}_{precision}")
        )
        repository.set_instances(config, options.instances)
        repository.set_accelerator(config, PRECISIONS[precision].accelerator)
        if threads:
            config.parameters["sim_threads"].string_value = str(threads)
        served[precision] = repository.write_config(models / config.name, config)
    last = served[options.precisions[-1]]
    names = repository.read_names(models / last.name)
    rivals = tuple(
        repository.write_onnxruntime_model(
            models / f"{name}_python_{engine}", last, names, network.file, source
        )
        for engine, source in RIVALS.items()
    )
    return Case(name, rivals, served, network.make_rows(last, NUM_ROWS))


def make_comparison(case: Case, concurrency: int, folder: Path) -> Comparison:
    """Return the comparison of a case's models under the same requests."""
    subjects = [
        Subject(rival.name, inputs.write_inputs(folder, rival, case.rows)) for rival in case.rivals
    ]
    for precision, config in case.served.items():
        data = inputs.write_inputs(folder, config, case.rows)
        goal, is_fp32 = PRECISIONS[precision].goal, PRECISIONS[precision].precision == "fp32"
        goals = (None, goal) if is_fp32 else (goal, None)
        subjects.append(Subject(config.name, data, throughput=goals[0], rivals=goals[1]))
    return Comparison(case.name, concurrency, tuple(subjects), len(case.rivals))


def measure(
    name: str, threads: int, options: argparse.Namespace, console: Console
) -> tuple[list[Comparison], list[list[Round]]]:
    """Measure a network at each concurrency, in a separate server: small machines do not hold them
    all."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        case = write_case(folder, name, threads, options)
        at_once = options.concurrency[:1] if name in LARGE else options.concurrency
        comparisons = [make_comparison(case, concurrency, folder) for concurrency in at_once]
        with repository.serve(folder / "models", folder / "log") as server:
            # This benchmark does not check the answers of other precisions.
            exact = [
                config
                for precision, config in case.served.items()
                if PRECISIONS[precision].precision == "fp32"
            ]
            inputs.check_answers(server.grpc_url, case.rows[0], (*case.rivals, *exact))
            results = rounds.run_rounds(
                server.grpc_url, comparisons, options.rounds, options.seconds, console
            )
    return comparisons, results


def parse_options() -> argparse.Namespace:
    """Parse the command line; `models` are the names of all models to measure."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--instances", type=int, default=1, help="of every model; they share the cores (default 1)")
    add(
        "--threads",
        type=int,
        nargs="+",
        default=[0],
        help="of every instance; all are measured in turn (default: the cores, shared)",
    )
    add(
        "--models",
        nargs="+",
        choices=SERVED,
        metavar="M",
        help=f"of {', '.join(SERVED)} (default: all, or none with --real)",
    )
    add(
        "--real",
        nargs="*",
        metavar="R",
        help=f"real models of models.json (without a name: {', '.join(REAL)})",
    )
    add(
        "--precisions",
        nargs="+",
        choices=PRECISIONS,
        default=list(PRECISIONS),
        help="(default: all)",
    )
    options = rounds.parse_options(parser, seconds=rounds.SECONDS, concurrency=(1, 16))
    networks = options.models or (SERVED if options.real is None else [])
    options.models = [*networks, *(REAL if options.real == [] else options.real or [])]
    model_table.read_models(options.models[len(networks) :])  # unknown names end here
    return options


def main() -> None:
    """Measure, and print a report for each number of threads and network as soon as it is there."""
    options = parse_options()
    console = report.make_console()
    for threads in options.threads:
        comparisons, found = [], []
        for name in options.models:
            title = (
                f"{name} beside ONNX Runtime and OpenVINO in Python models, gRPC, a row per "
                f"request, {options.instances} instance(s), threads: {threads or 'the cores'}"
            )
            some, results = measure(name, threads, options, console)
            report.print_report(title, some, results, console)
            comparisons += some
            found += results
        title = f"throughput over ONNX Runtime's, threads: {threads or 'the cores'}"
        wide = report.make_wide_table(title, comparisons, found)
        section = f"against {threads} threads" if threads else "against"
        report.show(console, {section: wide}, options.docs)


if __name__ == "__main__":
    main()
