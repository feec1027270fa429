"""Written by `make docs` from popart's tables of operators; do not edit."""

from collections.abc import Sequence

import numpy.typing as npt

from popart.builder.builder import Builder
from popart.builder.opsets import Opset
from popart.debugcontext import DebugContext
from popart.enums import CollectiveOperator, ReductionType, ScatterReduction
from popart.variables import CommGroup

class AiOnnxOpset6(Opset):
    def abs(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def add(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def logical_and(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmax(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmin(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def averagepool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        is_test: int = ...,
        momentum: float = ...,
        spatial: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def cast(self, args: Sequence[str], to: str, debugContext: str | DebugContext = ...) -> str: ...
    def ceil(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def clip(
        self,
        args: Sequence[str],
        max: float = ...,
        min: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def concat(
        self, args: Sequence[str], axis: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def constant(self, value: npt.ArrayLike, debugContext: str | DebugContext = ...) -> str: ...
    def conv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convtranspose(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        output_padding: Sequence[int] = ...,
        output_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def depthtospace(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def div(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def dropout(
        self,
        args: Sequence[str],
        num_outputs: int,
        is_test: int = ...,
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def elu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def equal(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def exp(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def flatten(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def floor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gru(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        linear_before_reset: int = ...,
        output_sequence: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def gather(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gemm(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        broadcast: int = ...,
        transA: int = ...,
        transB: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def globalaveragepool(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def globallppool(
        self, args: Sequence[str], p: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def globalmaxpool(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def greater(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardsigmoid(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def identity(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_if(
        self,
        args: Sequence[str],
        num_outputs: int,
        else_branch: Builder,
        then_branch: Builder,
        name: str | DebugContext = ...,
    ) -> list[str]: ...
    def instancenormalization(
        self, args: Sequence[str], epsilon: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def lrn(
        self,
        args: Sequence[str],
        size: int,
        alpha: float = ...,
        beta: float = ...,
        bias: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        input_forget: int = ...,
        output_sequence: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def leakyrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def less(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def log(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logsoftmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def loop(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def lpnormalization(
        self,
        args: Sequence[str],
        axis: int = ...,
        p: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lppool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        p: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def matmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def max(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def maxpool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def maxroipool(
        self,
        args: Sequence[str],
        pooled_shape: Sequence[int],
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def mean(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def min(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def mul(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def neg(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_not(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_or(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def prelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def pad(
        self,
        args: Sequence[str],
        pads: Sequence[int],
        mode: str = ...,
        value: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def pow(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def rnn(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        output_sequence: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def randomnormal(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomnormallike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniform(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniformlike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reciprocal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reducel1(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducel2(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsumexp(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemax(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemean(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemin(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reduceprod(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesumsquare(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def relu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def selu(
        self,
        args: Sequence[str],
        alpha: float = ...,
        gamma: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def shape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sigmoid(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def size(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def slice(
        self,
        args: Sequence[str],
        ends: Sequence[int],
        starts: Sequence[int],
        axes: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def softmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def softplus(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softsign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def spacetodepth(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def split(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int = ...,
        split: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def sqrt(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def squeeze(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def sub(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sum(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tile(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def topk(
        self, args: Sequence[str], k: int, axis: int = ..., debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def transpose(
        self, args: Sequence[str], perm: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def unsqueeze(
        self, args: Sequence[str], axes: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def upsample(
        self,
        args: Sequence[str],
        height_scale: float,
        width_scale: float,
        mode: str = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def logical_xor(
        self,
        args: Sequence[str],
        axis: int | None = ...,
        broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...

class AiOnnxOpset7(Opset):
    def abs(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def add(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_and(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def argmax(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmin(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def asin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def averagepool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        count_include_pad: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        momentum: float = ...,
        spatial: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def cast(self, args: Sequence[str], to: str, debugContext: str | DebugContext = ...) -> str: ...
    def ceil(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def clip(
        self,
        args: Sequence[str],
        max: float = ...,
        min: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def concat(
        self, args: Sequence[str], axis: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def constant(self, value: npt.ArrayLike, debugContext: str | DebugContext = ...) -> str: ...
    def conv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convtranspose(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        output_padding: Sequence[int] = ...,
        output_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def cos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def depthtospace(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def div(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def dropout(
        self,
        args: Sequence[str],
        num_outputs: int,
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def elu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def equal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def exp(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def flatten(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def floor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gru(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        linear_before_reset: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def gather(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gemm(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        transA: int = ...,
        transB: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def globalaveragepool(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def globallppool(
        self, args: Sequence[str], p: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def globalmaxpool(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def greater(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def hardsigmoid(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def identity(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_if(
        self,
        args: Sequence[str],
        num_outputs: int,
        else_branch: Builder,
        then_branch: Builder,
        name: str | DebugContext = ...,
    ) -> list[str]: ...
    def instancenormalization(
        self, args: Sequence[str], epsilon: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def lrn(
        self,
        args: Sequence[str],
        size: int,
        alpha: float = ...,
        beta: float = ...,
        bias: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        input_forget: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def leakyrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def less(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def log(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logsoftmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def loop(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def lpnormalization(
        self,
        args: Sequence[str],
        axis: int = ...,
        p: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lppool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        p: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def matmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def max(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def maxpool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def maxroipool(
        self,
        args: Sequence[str],
        pooled_shape: Sequence[int],
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def mean(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def min(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def mul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def multinomial(
        self,
        args: Sequence[str],
        dtype: int = ...,
        sample_size: int = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def neg(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_not(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_or(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def prelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def pad(
        self,
        args: Sequence[str],
        pads: Sequence[int],
        mode: str = ...,
        value: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def pow(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def rnn(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def randomnormal(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomnormallike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniform(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniformlike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reciprocal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reducel1(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducel2(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsumexp(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemax(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemean(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemin(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reduceprod(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesumsquare(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def relu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def selu(
        self,
        args: Sequence[str],
        alpha: float = ...,
        gamma: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def shape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sigmoid(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def size(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def slice(
        self,
        args: Sequence[str],
        ends: Sequence[int],
        starts: Sequence[int],
        axes: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def softmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def softplus(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softsign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def spacetodepth(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def split(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int = ...,
        split: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def sqrt(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def squeeze(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def sub(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sum(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tile(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def topk(
        self, args: Sequence[str], k: int, axis: int = ..., debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def transpose(
        self, args: Sequence[str], perm: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def unsqueeze(
        self, args: Sequence[str], axes: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def upsample(
        self,
        args: Sequence[str],
        scales: Sequence[float],
        mode: str = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def logical_xor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...

class AiOnnxOpset8(Opset):
    def abs(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def add(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_and(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def argmax(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmin(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def asin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def averagepool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        count_include_pad: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        momentum: float = ...,
        spatial: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def cast(self, args: Sequence[str], to: str, debugContext: str | DebugContext = ...) -> str: ...
    def ceil(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def clip(
        self,
        args: Sequence[str],
        max: float = ...,
        min: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def concat(
        self, args: Sequence[str], axis: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def constant(self, value: npt.ArrayLike, debugContext: str | DebugContext = ...) -> str: ...
    def conv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convtranspose(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        output_padding: Sequence[int] = ...,
        output_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def cos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def depthtospace(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def div(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def dropout(
        self,
        args: Sequence[str],
        num_outputs: int,
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def elu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def equal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def exp(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def expand(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def flatten(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def floor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gru(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        linear_before_reset: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def gather(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gemm(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        transA: int = ...,
        transB: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def globalaveragepool(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def globallppool(
        self, args: Sequence[str], p: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def globalmaxpool(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def greater(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def hardsigmoid(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def identity(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_if(
        self,
        args: Sequence[str],
        num_outputs: int,
        else_branch: Builder,
        then_branch: Builder,
        name: str | DebugContext = ...,
    ) -> list[str]: ...
    def instancenormalization(
        self, args: Sequence[str], epsilon: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def lrn(
        self,
        args: Sequence[str],
        size: int,
        alpha: float = ...,
        beta: float = ...,
        bias: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        input_forget: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def leakyrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def less(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def log(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logsoftmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def loop(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def lpnormalization(
        self,
        args: Sequence[str],
        axis: int = ...,
        p: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lppool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        p: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def matmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def max(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def maxpool(
        self,
        args: Sequence[str],
        num_outputs: int,
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        storage_order: int = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def maxroipool(
        self,
        args: Sequence[str],
        pooled_shape: Sequence[int],
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def mean(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def min(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def mul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def multinomial(
        self,
        args: Sequence[str],
        dtype: int = ...,
        sample_size: int = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def neg(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_not(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_or(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def prelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def pad(
        self,
        args: Sequence[str],
        pads: Sequence[int],
        mode: str = ...,
        value: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def pow(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def rnn(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def randomnormal(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomnormallike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniform(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniformlike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reciprocal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reducel1(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducel2(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsumexp(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemax(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemean(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemin(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reduceprod(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesumsquare(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def relu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def scan(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        num_scan_inputs: int,
        directions: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def selu(
        self,
        args: Sequence[str],
        alpha: float = ...,
        gamma: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def shape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sigmoid(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def size(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def slice(
        self,
        args: Sequence[str],
        ends: Sequence[int],
        starts: Sequence[int],
        axes: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def softmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def softplus(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softsign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def spacetodepth(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def split(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int = ...,
        split: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def sqrt(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def squeeze(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def sub(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sum(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tile(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def topk(
        self, args: Sequence[str], k: int, axis: int = ..., debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def transpose(
        self, args: Sequence[str], perm: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def unsqueeze(
        self, args: Sequence[str], axes: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def upsample(
        self,
        args: Sequence[str],
        scales: Sequence[float],
        mode: str = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def logical_xor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...

class AiOnnxOpset9(Opset):
    def abs(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acosh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def add(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_and(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def argmax(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmin(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def asin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def asinh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def averagepool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        count_include_pad: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        momentum: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def cast(self, args: Sequence[str], to: str, debugContext: str | DebugContext = ...) -> str: ...
    def ceil(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def clip(
        self,
        args: Sequence[str],
        max: float = ...,
        min: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def compress(
        self, args: Sequence[str], axis: int | None = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def concat(
        self, args: Sequence[str], axis: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def constant(self, value: npt.ArrayLike, debugContext: str | DebugContext = ...) -> str: ...
    def constantofshape(
        self, args: Sequence[str], value: npt.ArrayLike, debugContext: str | DebugContext = ...
    ) -> str: ...
    def conv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convtranspose(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        output_padding: Sequence[int] = ...,
        output_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def cos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def cosh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def depthtospace(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def div(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def dropout(
        self,
        args: Sequence[str],
        num_outputs: int,
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def elu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def equal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def erf(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def exp(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def expand(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def eyelike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        k: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def flatten(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def floor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gru(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        linear_before_reset: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def gather(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gemm(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        transA: int = ...,
        transB: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def globalaveragepool(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def globallppool(
        self, args: Sequence[str], p: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def globalmaxpool(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def greater(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def hardsigmoid(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def identity(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_if(
        self,
        args: Sequence[str],
        num_outputs: int,
        else_branch: Builder,
        then_branch: Builder,
        name: str | DebugContext = ...,
    ) -> list[str]: ...
    def instancenormalization(
        self, args: Sequence[str], epsilon: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def isnan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def lrn(
        self,
        args: Sequence[str],
        size: int,
        alpha: float = ...,
        beta: float = ...,
        bias: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        input_forget: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def leakyrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def less(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def log(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logsoftmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def loop(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def lpnormalization(
        self,
        args: Sequence[str],
        axis: int = ...,
        p: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lppool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        p: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def matmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def max(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def maxpool(
        self,
        args: Sequence[str],
        num_outputs: int,
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        storage_order: int = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def maxroipool(
        self,
        args: Sequence[str],
        pooled_shape: Sequence[int],
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def maxunpool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def mean(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def meanvariancenormalization(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def min(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def mul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def multinomial(
        self,
        args: Sequence[str],
        dtype: int = ...,
        sample_size: int = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def neg(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def nonzero(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_not(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def onehot(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def logical_or(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def prelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def pad(
        self,
        args: Sequence[str],
        pads: Sequence[int],
        mode: str = ...,
        value: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def pow(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def rnn(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def randomnormal(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomnormallike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniform(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniformlike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reciprocal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reducel1(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducel2(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsumexp(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemax(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemean(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemin(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reduceprod(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesumsquare(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def relu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def scan(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] = ...,
        scan_input_directions: Sequence[int] = ...,
        scan_output_axes: Sequence[int] = ...,
        scan_output_directions: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def scatter(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def selu(
        self,
        args: Sequence[str],
        alpha: float = ...,
        gamma: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def shape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def shrink(
        self,
        args: Sequence[str],
        bias: float = ...,
        lambd: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sigmoid(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sinh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def size(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def slice(
        self,
        args: Sequence[str],
        ends: Sequence[int],
        starts: Sequence[int],
        axes: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def softmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def softplus(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softsign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def spacetodepth(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def split(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int = ...,
        split: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def sqrt(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def squeeze(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def sub(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sum(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tfidfvectorizer(
        self,
        args: Sequence[str],
        max_gram_length: int,
        max_skip_count: int,
        min_gram_length: int,
        mode: str,
        ngram_counts: Sequence[int],
        ngram_indexes: Sequence[int],
        pool_int64s: Sequence[int] = ...,
        pool_strings: Sequence[str] = ...,
        weights: Sequence[float] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def tile(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def topk(
        self, args: Sequence[str], k: int, axis: int = ..., debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def transpose(
        self, args: Sequence[str], perm: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def unsqueeze(
        self, args: Sequence[str], axes: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def upsample(
        self, args: Sequence[str], mode: str = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def where(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_xor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...

class AiOnnxOpset10(Opset):
    def abs(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acosh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def add(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_and(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def argmax(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmin(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def asin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def asinh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def averagepool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        ceil_mode: int = ...,
        count_include_pad: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        momentum: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def cast(self, args: Sequence[str], to: str, debugContext: str | DebugContext = ...) -> str: ...
    def ceil(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def clip(
        self,
        args: Sequence[str],
        max: float = ...,
        min: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def compress(
        self, args: Sequence[str], axis: int | None = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def concat(
        self, args: Sequence[str], axis: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def constant(self, value: npt.ArrayLike, debugContext: str | DebugContext = ...) -> str: ...
    def constantofshape(
        self, args: Sequence[str], value: npt.ArrayLike, debugContext: str | DebugContext = ...
    ) -> str: ...
    def conv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convinteger(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convtranspose(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        output_padding: Sequence[int] = ...,
        output_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def cos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def cosh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def depthtospace(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def dequantizelinear(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def div(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def dropout(
        self,
        args: Sequence[str],
        num_outputs: int,
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def elu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def equal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def erf(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def exp(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def expand(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def eyelike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        k: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def flatten(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def floor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gru(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        linear_before_reset: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def gather(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gemm(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        transA: int = ...,
        transB: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def globalaveragepool(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def globallppool(
        self, args: Sequence[str], p: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def globalmaxpool(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def greater(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def hardsigmoid(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def identity(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_if(
        self,
        args: Sequence[str],
        num_outputs: int,
        else_branch: Builder,
        then_branch: Builder,
        name: str | DebugContext = ...,
    ) -> list[str]: ...
    def instancenormalization(
        self, args: Sequence[str], epsilon: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def isinf(
        self,
        args: Sequence[str],
        detect_negative: int = ...,
        detect_positive: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def isnan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def lrn(
        self,
        args: Sequence[str],
        size: int,
        alpha: float = ...,
        beta: float = ...,
        bias: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        input_forget: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def leakyrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def less(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def log(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logsoftmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def loop(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def lpnormalization(
        self,
        args: Sequence[str],
        axis: int = ...,
        p: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lppool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        p: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def matmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def matmulinteger(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def max(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def maxpool(
        self,
        args: Sequence[str],
        num_outputs: int,
        kernel_shape: Sequence[int],
        ceil_mode: int = ...,
        dilations: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        storage_order: int = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def maxroipool(
        self,
        args: Sequence[str],
        pooled_shape: Sequence[int],
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def maxunpool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def mean(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def meanvariancenormalization(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def min(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def mod(
        self, args: Sequence[str], fmod: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def mul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def multinomial(
        self,
        args: Sequence[str],
        dtype: int = ...,
        sample_size: int = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def neg(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def nonmaxsuppression(
        self,
        args: Sequence[str],
        center_point_box: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def nonzero(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_not(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def onehot(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def logical_or(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def prelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def pad(
        self,
        args: Sequence[str],
        pads: Sequence[int],
        mode: str = ...,
        value: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def pow(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def qlinearconv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def qlinearmatmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def quantizelinear(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def rnn(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def randomnormal(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomnormallike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniform(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniformlike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reciprocal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reducel1(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducel2(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsumexp(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemax(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemean(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemin(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reduceprod(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesumsquare(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def relu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def resize(
        self, args: Sequence[str], mode: str = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def reversesequence(
        self,
        args: Sequence[str],
        batch_axis: int = ...,
        time_axis: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def roialign(
        self,
        args: Sequence[str],
        mode: str = ...,
        output_height: int = ...,
        output_width: int = ...,
        sampling_ratio: int = ...,
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def scan(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] = ...,
        scan_input_directions: Sequence[int] = ...,
        scan_output_axes: Sequence[int] = ...,
        scan_output_directions: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def scatter(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def selu(
        self,
        args: Sequence[str],
        alpha: float = ...,
        gamma: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def shape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def shrink(
        self,
        args: Sequence[str],
        bias: float = ...,
        lambd: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sigmoid(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sinh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def size(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def slice(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def softplus(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softsign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def spacetodepth(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def split(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int = ...,
        split: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def sqrt(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def squeeze(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def stringnormalizer(
        self,
        args: Sequence[str],
        case_change_action: str = ...,
        is_case_sensitive: int = ...,
        locale: str | None = ...,
        stopwords: Sequence[str] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sub(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sum(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tfidfvectorizer(
        self,
        args: Sequence[str],
        max_gram_length: int,
        max_skip_count: int,
        min_gram_length: int,
        mode: str,
        ngram_counts: Sequence[int],
        ngram_indexes: Sequence[int],
        pool_int64s: Sequence[int] = ...,
        pool_strings: Sequence[str] = ...,
        weights: Sequence[float] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def thresholdedrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def tile(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def topk(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def transpose(
        self, args: Sequence[str], perm: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def unsqueeze(
        self, args: Sequence[str], axes: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def upsample(
        self, args: Sequence[str], mode: str = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def where(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_xor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...

class AiOnnxOpset11(Opset):
    def abs(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def acosh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def add(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_and(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def argmax(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def argmin(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def asin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def asinh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def atanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def averagepool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        ceil_mode: int = ...,
        count_include_pad: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        momentum: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def bitshift(
        self, args: Sequence[str], direction: str, debugContext: str | DebugContext = ...
    ) -> str: ...
    def cast(self, args: Sequence[str], to: str, debugContext: str | DebugContext = ...) -> str: ...
    def ceil(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def clip(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def compress(
        self, args: Sequence[str], axis: int | None = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def concat(
        self, args: Sequence[str], axis: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def concatfromsequence(
        self,
        args: Sequence[str],
        axis: int,
        new_axis: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def constant(
        self,
        value: npt.ArrayLike,
        is_value_sparse: bool = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def constantofshape(
        self, args: Sequence[str], value: npt.ArrayLike, debugContext: str | DebugContext = ...
    ) -> str: ...
    def conv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convinteger(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def convtranspose(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        output_padding: Sequence[int] = ...,
        output_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def cos(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def cosh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def cumsum(
        self,
        args: Sequence[str],
        exclusive: int = ...,
        reverse: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def depthtospace(
        self,
        args: Sequence[str],
        blocksize: int,
        mode: str = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def dequantizelinear(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def det(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def div(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def dropout(
        self,
        args: Sequence[str],
        num_outputs: int,
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def dynamicquantizelinear(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def elu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def equal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def erf(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def exp(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def expand(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def eyelike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        k: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def flatten(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def floor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gru(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        linear_before_reset: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def gather(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gatherelements(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def gathernd(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def gemm(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        transA: int = ...,
        transB: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def globalaveragepool(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def globallppool(
        self, args: Sequence[str], p: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def globalmaxpool(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def greater(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def hardsigmoid(
        self,
        args: Sequence[str],
        alpha: float = ...,
        beta: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def hardmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def identity(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_if(
        self,
        args: Sequence[str],
        num_outputs: int,
        else_branch: Builder,
        then_branch: Builder,
        name: str | DebugContext = ...,
    ) -> list[str]: ...
    def instancenormalization(
        self, args: Sequence[str], epsilon: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def isinf(
        self,
        args: Sequence[str],
        detect_negative: int = ...,
        detect_positive: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def isnan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def lrn(
        self,
        args: Sequence[str],
        size: int,
        alpha: float = ...,
        beta: float = ...,
        bias: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        input_forget: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def leakyrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def less(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def log(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logsoftmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def loop(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def lpnormalization(
        self,
        args: Sequence[str],
        axis: int = ...,
        p: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lppool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        p: int = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def matmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def matmulinteger(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def max(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def maxpool(
        self,
        args: Sequence[str],
        num_outputs: int,
        kernel_shape: Sequence[int],
        ceil_mode: int = ...,
        dilations: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        storage_order: int = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def maxroipool(
        self,
        args: Sequence[str],
        pooled_shape: Sequence[int],
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def maxunpool(
        self,
        args: Sequence[str],
        kernel_shape: Sequence[int],
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def mean(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def meanvariancenormalization(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def min(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def mod(
        self, args: Sequence[str], fmod: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def mul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def multinomial(
        self,
        args: Sequence[str],
        dtype: int = ...,
        sample_size: int = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def neg(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def nonmaxsuppression(
        self,
        args: Sequence[str],
        center_point_box: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def nonzero(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_not(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def onehot(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def logical_or(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def prelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def pad(
        self, args: Sequence[str], mode: str = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def pow(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def qlinearconv(
        self,
        args: Sequence[str],
        dilations: Sequence[int] = ...,
        group: int = ...,
        kernel_shape: Sequence[int] = ...,
        pads: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def qlinearmatmul(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def quantizelinear(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def rnn(
        self,
        args: Sequence[str],
        num_outputs: int,
        activation_alpha: Sequence[float] = ...,
        activation_beta: Sequence[float] = ...,
        activations: Sequence[str] = ...,
        clip: float | None = ...,
        direction: str = ...,
        hidden_size: int | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def randomnormal(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomnormallike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        mean: float = ...,
        scale: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniform(
        self,
        shape: Sequence[int],
        dtype: int = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def randomuniformlike(
        self,
        args: Sequence[str],
        dtype: int | None = ...,
        high: float = ...,
        low: float = ...,
        seed: float | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def range(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reciprocal(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reducel1(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducel2(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducelogsumexp(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemax(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemean(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducemin(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reduceprod(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesum(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reducesumsquare(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def relu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def resize(
        self,
        args: Sequence[str],
        coordinate_transformation_mode: str = ...,
        cubic_coeff_a: float = ...,
        exclude_outside: int = ...,
        extrapolation_value: float = ...,
        mode: str = ...,
        nearest_mode: str = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def reversesequence(
        self,
        args: Sequence[str],
        batch_axis: int = ...,
        time_axis: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def roialign(
        self,
        args: Sequence[str],
        mode: str = ...,
        output_height: int = ...,
        output_width: int = ...,
        sampling_ratio: int = ...,
        spatial_scale: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def round(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def scan(
        self,
        args: Sequence[str],
        num_outputs: int,
        body: Builder,
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] = ...,
        scan_input_directions: Sequence[int] = ...,
        scan_output_axes: Sequence[int] = ...,
        scan_output_directions: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def scatter(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def scatterelements(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def scatternd(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def selu(
        self,
        args: Sequence[str],
        alpha: float = ...,
        gamma: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sequenceat(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sequenceconstruct(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def sequenceempty(
        self, dtype: int | None = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def sequenceerase(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sequenceinsert(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def sequencelength(
        self, args: Sequence[str], debugContext: str | DebugContext = ...
    ) -> str: ...
    def shape(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def shrink(
        self,
        args: Sequence[str],
        bias: float = ...,
        lambd: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sigmoid(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sin(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sinh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def size(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def slice(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softmax(
        self, args: Sequence[str], axis: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def softplus(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def softsign(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def spacetodepth(
        self, args: Sequence[str], blocksize: int, debugContext: str | DebugContext = ...
    ) -> str: ...
    def split(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int = ...,
        split: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def splittosequence(
        self,
        args: Sequence[str],
        axis: int = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sqrt(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def squeeze(
        self, args: Sequence[str], axes: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def stringnormalizer(
        self,
        args: Sequence[str],
        case_change_action: str = ...,
        is_case_sensitive: int = ...,
        locale: str | None = ...,
        stopwords: Sequence[str] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sub(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def sum(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tan(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tanh(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def tfidfvectorizer(
        self,
        args: Sequence[str],
        max_gram_length: int,
        max_skip_count: int,
        min_gram_length: int,
        mode: str,
        ngram_counts: Sequence[int],
        ngram_indexes: Sequence[int],
        pool_int64s: Sequence[int] = ...,
        pool_strings: Sequence[str] = ...,
        weights: Sequence[float] = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def thresholdedrelu(
        self, args: Sequence[str], alpha: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def tile(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def topk(
        self,
        args: Sequence[str],
        axis: int = ...,
        largest: int = ...,
        sorted: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def transpose(
        self, args: Sequence[str], perm: Sequence[int] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def unique(
        self,
        args: Sequence[str],
        num_outputs: int,
        axis: int | None = ...,
        sorted: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def unsqueeze(
        self, args: Sequence[str], axes: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def upsample(
        self, args: Sequence[str], mode: str = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def where(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def logical_xor(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...

class AiGraphcoreOpset1(Opset):
    def copyvarupdate(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def batchnormalization(
        self,
        args: Sequence[str],
        num_outputs: int,
        epsilon: float = ...,
        momentum: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def groupnormalization(
        self,
        args: Sequence[str],
        num_groups: int,
        epsilon: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def printtensor(
        self,
        args: Sequence[str],
        print_gradient: int = ...,
        debugContext: str | DebugContext = ...,
        title: str = ...,
        summariseThreshold: int = ...,
        edgeItems: int = ...,
        maxLineWidth: int = ...,
        digits: int = ...,
        floatFormat: int = ...,
        separator: str = ...,
        openBracket: str = ...,
        closeBracket: str = ...,
    ) -> str: ...
    def nop(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def normalize_image(
        self, args: Sequence[str], scale: float = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def scale(
        self, args: Sequence[str], scale: float, debugContext: str | DebugContext = ...
    ) -> str: ...
    def scaledadd(
        self,
        args: Sequence[str],
        scale0: float = ...,
        scale1: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def lstm(
        self,
        args: Sequence[str],
        outputFullSequence: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def subsample(
        self, args: Sequence[str], strides: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def gelu(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def geluerf(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def detach(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def round(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def nearbyint(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def depthtospace(
        self, args: Sequence[str], blocksize: int, mode: str, debugContext: str | DebugContext = ...
    ) -> str: ...
    def init(
        self,
        shape: Sequence[int],
        data_type: int,
        init_type: int,
        batch_axis: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def dynamicslice(
        self,
        args: Sequence[str],
        axes: Sequence[int],
        sizes: Sequence[int],
        noOverlap: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def dynamicupdate(
        self,
        args: Sequence[str],
        axes: Sequence[int],
        sizes: Sequence[int],
        noOverlap: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def dynamiczero(
        self,
        args: Sequence[str],
        axes: Sequence[int],
        sizes: Sequence[int],
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def dynamicadd(
        self,
        args: Sequence[str],
        axes: Sequence[int],
        sizes: Sequence[int],
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def sequenceslice(
        self, args: Sequence[str], zeroUnused: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def packedDataBlock(
        self,
        args: Sequence[str],
        maxSequenceLengths: Sequence[int],
        resultSize: int,
        callbackBatchSize: int,
        callback: Builder,
        debugName: str | DebugContext = ...,
    ) -> str: ...
    def call(
        self,
        args: Sequence[str],
        num_outputs: int,
        callee: Builder,
        debugName: str | DebugContext = ...,
    ) -> list[str]: ...
    def fmod(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def replicatedallreduce(
        self,
        args: Sequence[str],
        collectiveOperator: CollectiveOperator | None = ...,
        commGroup: CommGroup | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def replicatedreducescatter(
        self,
        args: Sequence[str],
        collectiveOperator: CollectiveOperator | None = ...,
        commGroup: CommGroup | None = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def l1loss(
        self,
        args: Sequence[str],
        lambda_: float,
        reduction: ReductionType = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def nllloss(
        self,
        args: Sequence[str],
        reduction: ReductionType = ...,
        ignoreIndex: int | None = ...,
        inputIsLogProbability: bool = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def identityloss(
        self,
        args: Sequence[str],
        reduction: ReductionType = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def ctcloss(
        self,
        args: Sequence[str],
        reduction: ReductionType = ...,
        blank: int = ...,
        outDataType: str = ...,
        zeroInfinity: bool = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def multiconv(
        self,
        args: Sequence[Sequence[str]],
        dilations: Sequence[Sequence[int]] = ...,
        inDilations: Sequence[Sequence[int]] = ...,
        pads: Sequence[Sequence[int]] = ...,
        outPads: Sequence[Sequence[int]] = ...,
        strides: Sequence[Sequence[int]] = ...,
        availableMemoryProportions: Sequence[float] = ...,
        partialsTypes: Sequence[str] = ...,
        planType: str | None = ...,
        perConvReservedTiles: int | None = ...,
        cycleBackOff: float | None = ...,
        enableConvDithering: Sequence[int] = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def shapeddropout(
        self,
        args: Sequence[str],
        shape: Sequence[int],
        ratio: float = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def atan2(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def expm1(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def log1p(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reshape(
        self, args: str, shape: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def remainder(self, args: Sequence[str], debugContext: str | DebugContext = ...) -> str: ...
    def reverse(
        self, args: Sequence[str], dimensions: Sequence[int], debugContext: str | DebugContext = ...
    ) -> str: ...
    def slice(
        self,
        args: Sequence[str],
        ends: Sequence[int],
        starts: Sequence[int],
        axes: Sequence[int],
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def abort(self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...) -> None: ...
    def bitwiseand(
        self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def bitwisenot(
        self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def bitwiseor(
        self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def bitwisexor(
        self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def bitwisexnor(
        self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def bucketize(
        self, args: Sequence[str] = ..., right: int = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
    def sort(
        self,
        args: Sequence[str] = ...,
        axis: int = ...,
        descending: int = ...,
        stable: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def reducemedian(
        self,
        args: Sequence[str],
        axes: Sequence[int] | None = ...,
        keepdims: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> list[str]: ...
    def scatterreduce(
        self,
        args: Sequence[str],
        axis_size: int,
        axis: int = ...,
        reduction: ScatterReduction = ...,
        enable_index_broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def groupedscatterreduce(
        self,
        args: Sequence[str],
        axis_size: int,
        axis: int = ...,
        reduction: ScatterReduction = ...,
        group_size: int = ...,
        enable_index_broadcast: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def groupedgather(
        self,
        args: Sequence[str] = ...,
        axis: int = ...,
        group_size: int = ...,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def ctcbeamsearchdecoder(
        self,
        args: Sequence[str],
        blank: int = ...,
        beam_width: int = ...,
        top_paths: int = ...,
        debug_context: str | DebugContext = ...,
    ) -> list[str]: ...
    def swish(self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...) -> str: ...
    def incrementmod(
        self,
        args: Sequence[str],
        increment: float,
        modulus: float,
        debugContext: str | DebugContext = ...,
    ) -> str: ...
    def tensorremap(
        self, args: Sequence[str], remap_type: int = ..., debugPrefix: str | DebugContext = ...
    ) -> str: ...
    def splinebasis(
        self, args: Sequence[str], degree: int, debugContext: str | DebugContext = ...
    ) -> list[str]: ...
    def splineweighting(
        self, args: Sequence[str] = ..., debugContext: str | DebugContext = ...
    ) -> str: ...
