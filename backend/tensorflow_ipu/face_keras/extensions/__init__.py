"""Extensions of Keras models."""

from tensorflow_ipu.forwarding import forward_modules

_ROOM = "tensorflow_ipu.keras_extensions"
_MODULES = (
    "data_adapter",
    "data_feed_manager",
    "extensions_base",
    "extensions_util",
    "functional_extensions",
    "model_extensions",
    "pipeline_stage_assignment",
    "polling_thread",
    "register_extensions",
    "sequential_extensions",
)

__getattr__, __dir__ = forward_modules(
    __name__,
    {name: f".{name}" for name in _MODULES},
    {
        "FunctionalExtension": f"{_ROOM}.functional",
        "FunctionalLayerPipelineStageAssignment": f"{_ROOM}.assignments",
        "FunctionalNestedModelPipelineStageAssignment": f"{_ROOM}.assignments",
        "ModelExtension": f"{_ROOM}.subclassed",
        "ModelLayerPipelineStageAssignment": f"{_ROOM}.assignments",
        "NestedModelPipelineStageAssignment": f"{_ROOM}.assignments",
        "PipelineStage": f"{_ROOM}.stages",
        "ReplicatedMetricReductionMethod": f"{_ROOM}.metric_reduction",
        "SequentialExtension": f"{_ROOM}.sequential",
        "SequentialLayerPipelineStageAssignment": f"{_ROOM}.assignments",
        "SequentialNestedModelPipelineStageAssignment": f"{_ROOM}.assignments",
    },
)
