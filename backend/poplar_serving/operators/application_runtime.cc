// The operators ApplicationRuntime and ApplicationCall, under the names and with the attributes of
// Graphcore's TensorFlow.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "engine.h"

namespace poplar_serving {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::DataTypeVector;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// As long as a duration in nanoseconds can be, with room for what is added to it.
constexpr int64_t kMostTimeoutUs = int64_t{1} << 40;

// Stateful: folding constants or merging equal nodes must not run it, nor drop it.
REGISTER_OP("ApplicationRuntime")
    .Input("inputs: input_types")
    .Input("filename: string")
    .Output("anchor: int32")
    .Attr("input_types: list(type) >= 0")
    .Attr("engine_name: string")
    .Attr("timeout_us: int = 5000")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("ApplicationCall")
    .Input("infeeds: infeed_types")
    .Input("anchor: int32")
    .Attr("infeed_types: list(type) >= 0")
    .Output("outfeeds: outfeed_types")
    .Attr("outfeed_types: list(type) >= 0")
    .Attr("engine_name: string")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

// TensorFlow takes what is unavailable for a fault of the network between its own parts, and rewrites it.
absl::Status ToStatus(const Fault &fault) {
    const uint32_t code = fault.code == kUnavailable ? kInternal : fault.code;
    return absl::Status(static_cast<absl::StatusCode>(code), fault.text);
}

std::string Describe(const Tensor &tensor) {
    const auto sizes = tensor.shape().dim_sizes();
    return poplar_serving::Describe(tensor.dtype(), std::vector<int64_t>(sizes.begin(), sizes.end()));
}

// Starts the engine, or finds it: its number is the anchor.
class ApplicationRuntime : public OpKernel {
  public:
    explicit ApplicationRuntime(OpKernelConstruction *context) : OpKernel(context) {
        OP_REQUIRES_OK(context, context->GetAttr("engine_name", &engine_name_));
        OP_REQUIRES_OK(context, context->GetAttr("timeout_us", &timeout_us_));
        OP_REQUIRES(context, timeout_us_ >= 0 && timeout_us_ <= kMostTimeoutUs,
                    absl::InvalidArgumentError("timeout_us: expected 0 to " + std::to_string(kMostTimeoutUs) +
                                               " microseconds, found " + std::to_string(timeout_us_)));
    }

    void Compute(OpKernelContext *context) override {
        OpInputList inputs;
        OP_REQUIRES_OK(context, context->input_list("inputs", &inputs));
        OP_REQUIRES(context, inputs.size() == 0,
                    absl::InvalidArgumentError(
                        "engine " + Quote(engine_name_) + ": inputs: expected none, found " +
                        std::to_string(inputs.size()) + "; the weights of a model are in its PopEF file"));
        const Tensor *filename;
        OP_REQUIRES_OK(context, context->input("filename", &filename));
        OP_REQUIRES(context, filename->NumElements() == 1,
                    absl::InvalidArgumentError("engine " + Quote(engine_name_) +
                                               ": filename: expected one path, found " +
                                               std::to_string(filename->NumElements())));
        std::shared_ptr<Engine> engine;
        OP_REQUIRES_OK(context, ToStatus(Open(filename->flat<tensorflow::tstring>()(0), &engine)));
        std::shared_ptr<Child> child;
        std::shared_ptr<const Description> description;
        OP_REQUIRES_OK(context, ToStatus(engine->Ready(&child, &description)));
        Tensor *anchor;
        OP_REQUIRES_OK(context, context->allocate_output("anchor", TensorShape({}), &anchor));
        anchor->scalar<int32_t>()() = engine->number();
    }

  private:
    // Kept: an engine lives as long as a kernel that has started it.
    Fault Open(const std::string &path, std::shared_ptr<Engine> *engine) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (engine_ == nullptr || path_ != path) {
            std::shared_ptr<Engine> opened;
            Fault fault = Engine::Open(engine_name_, path, timeout_us_, Program::FromEnvironment(), &opened);
            if (fault) return fault;
            engine_ = std::move(opened);
            path_ = path;
        }
        *engine = engine_;
        return {};
    }

    std::string engine_name_;
    int64_t timeout_us_ = 0;
    std::mutex mutex_;
    std::string path_;
    std::shared_ptr<Engine> engine_;
};

// Runs one batch.
class ApplicationCall : public AsyncOpKernel {
  public:
    explicit ApplicationCall(OpKernelConstruction *context) : AsyncOpKernel(context) {
        OP_REQUIRES_OK(context, context->GetAttr("engine_name", &engine_name_));
        OP_REQUIRES_OK(context, context->GetAttr("outfeed_types", &outfeed_types_));
    }

    void ComputeAsync(OpKernelContext *context, DoneCallback done) override {
        std::shared_ptr<Child> child;
        std::shared_ptr<const Description> description;
        OP_REQUIRES_OK_ASYNC(context, ToStatus(FindChild(context, &child, &description)), done);
        OpInputList infeeds;
        OP_REQUIRES_OK_ASYNC(context, context->input_list("infeeds", &infeeds), done);
        std::vector<Bytes> inputs;
        OP_REQUIRES_OK_ASYNC(context, ToStatus(TakeInputs(infeeds, *description, &inputs)), done);
        OP_REQUIRES_OK_ASYNC(context, ToStatus(CheckOutputs(*description)), done);

        const uint64_t id = child->NewId();
        tensorflow::CancellationManager *manager = context->cancellation_manager();
        tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
        if (manager != nullptr) {
            token = manager->get_cancellation_token();
            const bool in_time = manager->RegisterCallback(token, [child, id] { child->Cancel(id); });
            OP_REQUIRES_ASYNC(
                context, in_time,
                absl::CancelledError("engine " + Quote(engine_name_) + ": the call was cancelled"), done);
        }
        child->Call(id, std::move(inputs),
                    [context, manager, token, description, done](const Fault &fault, std::string outputs) {
                        auto answer = std::make_shared<std::string>(std::move(outputs));
                        // What follows in the graph may take long: it keeps no other answer waiting.
                        (*context->runner())([context, manager, token, description, done, fault, answer] {
                            if (manager != nullptr && fault.code != kCancelled)
                                manager->DeregisterCallback(token);
                            const absl::Status status =
                                fault ? ToStatus(fault) : GiveOutputs(context, *description, *answer);
                            OP_REQUIRES_OK_ASYNC(context, status, done);
                            done();
                        });
                    });
    }

  private:
    Fault FindChild(OpKernelContext *context, std::shared_ptr<Child> *child,
                    std::shared_ptr<const Description> *description) {
        const Tensor *anchor;
        const absl::Status status = context->input("anchor", &anchor);
        if (!status.ok() || anchor->NumElements() != 1) {
            return {kInvalidArgument, "engine " + Quote(engine_name_) + ": anchor: expected one number"};
        }
        const int32_t number = anchor->flat<int32_t>()(0);
        std::shared_ptr<Engine> engine = Engine::Find(number);
        if (engine == nullptr || engine->name() != engine_name_) {
            return {
                kFailedPrecondition,
                "engine " + Quote(engine_name_) +
                    ": it is not started: expected the anchor of an ApplicationRuntime of that engine_name, "
                    "found " +
                    std::to_string(number) +
                    (engine == nullptr ? ", which is none" : ", which is that of " + Quote(engine->name()))};
        }
        return engine->Ready(child, description);
    }

    Fault TakeInputs(const OpInputList &infeeds, const Description &description, std::vector<Bytes> *inputs) {
        const std::string engine = "engine " + Quote(engine_name_);
        if (static_cast<size_t>(infeeds.size()) != description.inputs.size()) {
            return {kInvalidArgument, engine + ": expected " + std::to_string(description.inputs.size()) +
                                          " inputs, found " + std::to_string(infeeds.size())};
        }
        for (int i = 0; i < infeeds.size(); ++i) {
            const TensorInfo &expected = description.inputs[i];
            auto found = std::make_shared<const Tensor>(infeeds[i]);
            const std::string shown = Describe(*found);
            const std::string wanted = poplar_serving::Describe(expected.type, expected.shape);
            if (shown != wanted) {
                return {kInvalidArgument, engine + ": input " + std::to_string(i) + " (" +
                                              Quote(expected.name) + "): expected " + wanted + ", found " +
                                              shown +
                                              "; cast or reshape it, for instance in a preprocessing_step"};
            }
            const auto bytes = found->tensor_data();
            inputs->push_back({found, bytes.data(), bytes.size()});
        }
        return {};
    }

    Fault CheckOutputs(const Description &description) {
        bool equal = outfeed_types_.size() == description.outputs.size();
        std::string wanted;
        for (size_t i = 0; i < description.outputs.size(); ++i) {
            const TensorInfo &output = description.outputs[i];
            equal = equal && static_cast<uint32_t>(outfeed_types_[i]) == output.type;
            wanted += (i > 0 ? ", " : "") + poplar_serving::Describe(output.type, output.shape);
        }
        if (equal) return {};
        return {kInvalidArgument, "engine " + Quote(engine_name_) + ": outfeed_types: the model gives " +
                                      wanted + ", found " + tensorflow::DataTypeVectorString(outfeed_types_)};
    }

    static absl::Status GiveOutputs(OpKernelContext *context, const Description &description,
                                    const std::string &bytes) {
        OpOutputList outfeeds;
        absl::Status status = context->output_list("outfeeds", &outfeeds);
        size_t place = 0;
        for (size_t i = 0; status.ok() && i < description.outputs.size(); ++i) {
            const TensorInfo &output = description.outputs[i];
            Tensor *tensor;
            status = outfeeds.allocate(static_cast<int>(i), TensorShape(output.shape), &tensor);
            if (!status.ok()) break;
            if (output.bytes > 0) std::memcpy(tensor->data(), bytes.data() + place, output.bytes);
            place += output.bytes;
        }
        return status;
    }

    std::string engine_name_;
    DataTypeVector outfeed_types_;
};

REGISTER_KERNEL_BUILDER(Name("ApplicationRuntime").Device(tensorflow::DEVICE_CPU), ApplicationRuntime);
REGISTER_KERNEL_BUILDER(Name("ApplicationCall").Device(tensorflow::DEVICE_CPU), ApplicationCall);

} // namespace
} // namespace poplar_serving
