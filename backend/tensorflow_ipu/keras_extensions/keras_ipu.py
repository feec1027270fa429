"""The names of `keras.ipu`, which `tf.keras.ipu` and `tensorflow.keras.ipu` have too."""

from tensorflow_ipu.forwarding import forward_modules

__ipu__built__ = "1"
__path__: list[str] = []  # import_hook.py finds what is in it
_ROOM = "tensorflow_ipu.keras_extensions"

__getattr__, __dir__ = forward_modules(
    __name__,
    {name: f"keras.ipu.{name}" for name in ("extensions", "layers", "optimizers")},
    {
        "FunctionalLayerPipelineStageAssignment": f"{_ROOM}.assignments",
        "FunctionalNestedModelPipelineStageAssignment": f"{_ROOM}.assignments",
        "ModelLayerPipelineStageAssignment": f"{_ROOM}.assignments",
        "NestedModelPipelineStageAssignment": f"{_ROOM}.assignments",
        "PipelineStage": f"{_ROOM}.stages",
        "ReplicatedMetricReductionMethod": f"{_ROOM}.metric_reduction",
        "SequentialLayerPipelineStageAssignment": f"{_ROOM}.assignments",
        "SequentialNestedModelPipelineStageAssignment": f"{_ROOM}.assignments",
    },
)
