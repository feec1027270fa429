"""TensorFlow for the IPU: run a model in a session, and keep what a Triton server needs.

    TF_POPLAR_FLAGS=--executable_cache_path=cache python examples/tensorflow_serving.py FOLDER
        [--frozen]

The compiled program is written to the folder `cache`, as `<hash>.poplar_exec`. FOLDER gets the
weights (`weights.popef`) and the session's inputs and answers (`answers.npz`). With --frozen the
weights are constants of the graph, and there is no file of weights. The script is TensorFlow 1 code
as it runs on a real IPU. docs/tensorflow.md continues with the server.
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu

BATCHES, BATCH, FEATURES, CLASSES = 5, 4, 8, 3


def main() -> None:
    """Run the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frozen", action="store_true")
    options = parser.parse_args()
    tf.disable_v2_behavior()
    random = np.random.default_rng(0)
    data = random.normal(size=(BATCHES * BATCH, FEATURES)).astype("float32")
    weight = random.normal(size=(FEATURES, CLASSES)).astype("float32")
    bias = random.normal(size=CLASSES).astype("float32")

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()

    dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH, drop_remainder=True)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def make_weight(name: str, value: np.ndarray) -> tf.Tensor:
        if options.frozen:
            return tf.constant(value)
        with tf.variable_scope("net", use_resource=True):
            return tf.get_variable(name, initializer=value)

    def body(images: tf.Tensor) -> tf.Operation:
        logits = images @ make_weight("w", weight) + make_weight("b", bias)
        probabilities = tf.nn.softmax(logits)
        return outfeed.enqueue((probabilities, tf.reduce_max(logits, axis=1, keepdims=True)))

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        run = ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(BATCHES, body, [], infeed))
    ipu.utils.move_variable_initialization_to_cpu()
    answers = outfeed.dequeue()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(infeed.initializer)
        session.run(run)
        probabilities, largest = session.run(answers)
        options.folder.mkdir(parents=True, exist_ok=True)
        if not options.frozen:
            file = options.folder / "weights.popef"
            ipu.utils.export_variables_from_live_session(session, str(file))
    images = data.reshape(BATCHES, BATCH, FEATURES)
    np.savez(options.folder / "answers.npz", images=images, outputs=probabilities, largest=largest)
    print(f"computed {BATCHES} batches of {BATCH} rows")


if __name__ == "__main__":
    main()
