"""A text model: which sentence means the same as the first one?

    python examples/text_similarity.py ["sentence" "other sentence" ...]

Runs the example model `sentence_similarity` (`make models`) in this process. Its weights are in a
file of their own, which is loaded beside the executable.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from model_runtime import ModelRunner, ModelRunnerConfig
from poplar_triton.demo.sentence_similarity import SentenceSimilarity, cosines

MODEL = Path(__file__).parents[1] / "model_repository" / "sentence_similarity"
SENTENCES = (
    "How do I cook rice?",
    "My bicycle has a flat tyre.",
    "What is the best way to prepare rice?",
)


def main() -> None:
    """Print the similarity of each sentence to the first, -1 to 1."""
    sentences = tuple(sys.argv[1:]) or SENTENCES
    inputs = SentenceSimilarity(MODEL).inputs(sentences)  # two tensors, int64 [sentences, 64]
    files = [str(MODEL / "1" / name) for name in ("executable.popef", "weights.popef")]
    with ModelRunner(files, ModelRunnerConfig(batching_dim=0)) as runner:
        outputs = runner.execute({name: rows.astype(np.int32) for name, rows in inputs.items()})
    (embedding,) = outputs.values()  # float32 [sentences, 384]
    for sentence, cosine in zip(sentences[1:], cosines(embedding)[0, 1:], strict=True):
        print(f"{cosine:5.2f}  {sentence}")


if __name__ == "__main__":
    main()
