// SPDX-License-Identifier: Apache-2.0
// The libtorch backend: the same stage as the reference's, on libtorch's kernels, on a GPU where
// libtorch has one.
//
// The problem: autograd computes a linear layer's input gradient and weight gradient together, and
// asking for them in two calls walks the whole chain twice. The idea: a linear function whose
// backward returns the input's gradient only and puts (x, dy) on the microbatch's queue;
// backward_weight multiplies the queue later. Same products, same bytes.
//
// The only file that sees libtorch, whose headers cost 20 s a file and whose loading costs 0.7 s a
// process. Exceptions of libtorch end here. Parameters live in the optimizer's flat host array;
// tensors are views of it on a CPU and of a copy on a GPU. Gradients come back to the host to be
// added, so both devices share the exact sums and the optimizer.
//
// Results are the same bytes in every process on one kind of processor and one libtorch; across
// kinds only the reference backend's are (BLAS chooses its kernels by processor). On a GPU set
// CUBLAS_WORKSPACE_CONFIG=:4096:8, without which cuBLAS is not deterministic and libtorch refuses
// to run.
#include "nn/torch_stage.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/cuda.h>

#include "nn/numeric_threads.hpp"
#include "nn/stage_base.hpp"

namespace holdfast::training {
namespace nn {
namespace {

using at::Tensor;

enum class Backward : std::uint8_t { split, coupled };

struct LinearTensors {
    LinearSlots slots;
    Tensor weight;
    Tensor bias;
};

struct NormTensors {
    NormSlots slots;
    Tensor weight;
    Tensor bias;
};

struct BlockTensors {
    NormTensors norm1;
    LinearTensors qkv;
    LinearTensors projection;
    NormTensors norm2;
    LinearTensors up;
    LinearTensors down;
};

/// Views of the parameters, valid until they move.
struct StageTensors {
    Tensor token;
    Tensor position;
    std::vector<BlockTensors> blocks;
    NormTensors final_norm;
    LinearTensors head;
};

/// The weight gradient of one linear layer, still to be multiplied: dyᵀ · x and Σ dy.
struct Queued {
    LinearSlots slots;
    Tensor x;
    Tensor dy;
};

/// One use of a linear layer by one microbatch. The graph owns it; the queue is the microbatch's,
/// which owns the graph.
struct LinearCall : torch::CustomClassHolder {
    LinearCall(LinearTensors used, std::vector<Queued>* where)
        : tensors(std::move(used)), queue(where) {}

    LinearTensors tensors;
    std::vector<Queued>* queue;
};

struct SplitLinear : torch::autograd::Function<SplitLinear> {
    static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                          const c10::intrusive_ptr<LinearCall>& call) {
        context->save_for_backward({x});
        context->saved_data["call"] = at::IValue::make_capsule(call);
        return at::addmm(call->tensors.bias, x, call->tensors.weight.t());
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
        const auto capsule = context->saved_data["call"].toCapsule();
        const auto& call = static_cast<const LinearCall&>(*capsule);
        const Tensor dy = gradients.at(0).contiguous();
        const Tensor x = context->get_saved_variables().at(0).detach();
        call.queue->push_back({.slots = call.tensors.slots, .x = x, .dy = dy});
        return {at::mm(dy, call.tensors.weight), Tensor()};
    }
};

/// A gradient that backward_input computed whole, for its place in the flat array.
struct Finished {
    std::size_t offset = 0;
    Tensor gradient;
};

/// What a microbatch keeps. The graph (in, out) is declared after what it points into, so it is
/// destroyed before.
struct Kept {
    Phase phase = Phase::forward_done;
    Batch batch;
    std::vector<Queued> queue;
    std::vector<Finished> finished;
    Tensor dembedding;
    double loss = 0;
    Tensor in;
    Tensor out;
};

/// Runs code that calls libtorch and turns what it throws into an error.
template <typename Call>
auto guarded(const char* what, Call&& call) -> decltype(call()) {
    try {
        return std::forward<Call>(call)();
    } catch (const std::exception& thrown) {
        // The first line says what; the rest is a stack of libtorch's own frames.
        const std::string text = thrown.what();
        return fail(Errc::failed, "{}: libtorch: {}", what, text.substr(0, text.find('\n')));
    }
}

class TorchStage final : public StageBase {
  public:
    TorchStage(StageOptions options, Backward mode)
        : StageBase(std::move(options)),
          mode_(mode),
          device_(torch::cuda::is_available() ? at::kCUDA : at::kCPU) {
        const std::int64_t context = this->options().model.context;
        const auto real = at::TensorOptions().dtype(at::kFloat).device(device_);
        mask_ = at::full({context, context}, -std::numeric_limits<float>::infinity(), real).triu(1);
        scratch_ = at::zeros({static_cast<std::int64_t>(layout().size)}, real);
        bind_parameters();
    }

    Result<std::vector<float>> forward(const MicrobatchKey& key,
                                       std::span<const float> input) override;
    Result<std::vector<float>> backward_input(const MicrobatchKey& key,
                                              std::span<const float> output_gradient) override;
    Result<> backward_weight(const MicrobatchKey& key) override;
    [[nodiscard]] Result<double> loss(const MicrobatchKey& key) const override;

  private:
    void bind_parameters() override;

    void drop_kept() override { kept_.clear(); }

    [[nodiscard]] std::size_t kept() const override { return kept_.size(); }

    [[nodiscard]] std::int64_t rows() const {
        return options().model.sequences * options().model.context;
    }

    [[nodiscard]] Tensor to_device(std::span<const float> values) const;
    [[nodiscard]] Tensor tokens_to_device(std::span<const std::uint8_t> tokens) const;
    [[nodiscard]] Tensor embed(const Batch& batch) const;
    Tensor linear(const LinearTensors& tensors, const Tensor& x, Kept& kept) const;
    [[nodiscard]] Tensor attend(const Tensor& qkv) const;
    Tensor block(const BlockTensors& tensors, const Tensor& x, Kept& kept) const;
    void run_forward(Kept& kept) const;
    void run_backward(Kept& kept, const Tensor& slope) const;
    void multiply_queue(const Kept& kept);
    /// Everything that backward_input computes besides the input's gradient: norms; in coupled mode
    /// all of the stage.
    template <typename Visit>
    void visit_leaves(Visit&& visit) const;

    Backward mode_;
    at::Device device_;
    Tensor mask_;     ///< [context, context], -inf above the diagonal
    Tensor scratch_;  ///< one microbatch's gradient, flat
    StageTensors tensors_;
    std::map<MicrobatchKey, Kept> kept_;
};

Tensor norm(const NormTensors& tensors, const Tensor& x) {
    return at::layer_norm(x, {x.size(1)}, tensors.weight, tensors.bias);
}

std::vector<float> to_host(const Tensor& tensor) {
    const Tensor host = tensor.detach().to(at::kCPU).contiguous();
    const float* data = host.data_ptr<float>();
    return {data, data + host.numel()};
}

void TorchStage::bind_parameters() {
    const std::span<const float> flat = parameters();
    // from_blob wants a mutable pointer; nothing here writes through it.
    Tensor all = at::from_blob(const_cast<float*>(flat.data()),
                               {static_cast<std::int64_t>(flat.size())}, at::kFloat)
                     .to(device_);
    const bool whole = mode_ == Backward::coupled;
    const auto view = [&](std::size_t offset, std::int64_t size, bool leaf) {
        return all.narrow(0, static_cast<std::int64_t>(offset), size).detach().requires_grad_(leaf);
    };
    const auto linear = [&](const LinearSlots& slots) {
        const Tensor weight = view(slots.weight, slots.outputs * slots.inputs, false)
                                  .view({slots.outputs, slots.inputs});
        return LinearTensors{.slots = slots,
                             .weight = weight.detach().requires_grad_(whole),
                             .bias = view(slots.bias, slots.outputs, whole)};
    };
    const std::int64_t width = options().model.width;
    const auto norm_of = [&](const NormSlots& slots) {
        return NormTensors{.slots = slots,
                           .weight = view(slots.weight, width, true),
                           .bias = view(slots.bias, width, true)};
    };
    StageTensors bound;
    if (layout().first) {
        const std::int64_t vocabulary = options().model.vocabulary;
        const std::int64_t context = options().model.context;
        bound.token = view(layout().token, vocabulary * width, false).view({vocabulary, width});
        bound.position = view(layout().position, context * width, false).view({1, context, width});
    }
    for (const BlockSlots& slots : layout().blocks) {
        bound.blocks.push_back({.norm1 = norm_of(slots.norm1),
                                .qkv = linear(slots.qkv),
                                .projection = linear(slots.projection),
                                .norm2 = norm_of(slots.norm2),
                                .up = linear(slots.up),
                                .down = linear(slots.down)});
    }
    if (layout().last) {
        bound.final_norm = norm_of(layout().final_norm);
        bound.head = linear(layout().head);
    }
    tensors_ = std::move(bound);
}

Tensor TorchStage::to_device(std::span<const float> values) const {
    const Tensor host = at::empty({rows(), options().model.width}, at::kFloat);
    HOLD_CHECK(static_cast<std::size_t>(host.numel()) == values.size(), "checked by the caller");
    std::memcpy(host.data_ptr<float>(), values.data(), values.size_bytes());
    return host.to(device_);
}

Tensor TorchStage::tokens_to_device(std::span<const std::uint8_t> tokens) const {
    const Tensor host = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), host.data_ptr<std::int64_t>());
    return host.to(device_);
}

Tensor TorchStage::embed(const Batch& batch) const {
    const ModelConfig& model = options().model;
    const Tensor token = tensors_.token.index_select(0, tokens_to_device(batch.tokens));
    return (token.view({model.sequences, model.context, model.width}) + tensors_.position)
        .view({rows(), model.width});
}

Tensor TorchStage::linear(const LinearTensors& tensors, const Tensor& x, Kept& kept) const {
    if (mode_ == Backward::coupled) {
        return at::addmm(tensors.bias, x, tensors.weight.t());
    }
    return SplitLinear::apply(x, c10::make_intrusive<LinearCall>(tensors, &kept.queue));
}

Tensor TorchStage::attend(const Tensor& qkv) const {
    const ModelConfig& model = options().model;
    const std::int64_t size = model.width / model.heads;
    const std::int64_t batch = model.sequences * model.heads;
    // [3, sequences, heads, context, size]
    const Tensor parts = qkv.view({model.sequences, model.context, 3, model.heads, size})
                             .permute({2, 0, 3, 1, 4})
                             .reshape({3, batch, model.context, size});
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    const Tensor scores = at::baddbmm(mask_, parts[0], parts[1].transpose(1, 2), 1, scale);
    const Tensor attended = at::bmm(at::softmax(scores, -1), parts[2]);
    return attended.view({model.sequences, model.heads, model.context, size})
        .transpose(1, 2)
        .reshape({rows(), model.width});
}

Tensor TorchStage::block(const BlockTensors& tensors, const Tensor& x, Kept& kept) const {
    const Tensor qkv = linear(tensors.qkv, norm(tensors.norm1, x), kept);
    const Tensor middle = x + linear(tensors.projection, attend(qkv), kept);
    const Tensor wide = linear(tensors.up, norm(tensors.norm2, middle), kept);
    return middle + linear(tensors.down, at::gelu(wide), kept);
}

void TorchStage::run_forward(Kept& kept) const {
    kept.in.requires_grad_(true);
    kept.queue.reserve(layout().blocks.size() * 4 + 1);
    Tensor x = kept.in;
    for (const BlockTensors& tensors : tensors_.blocks) {
        x = block(tensors, x, kept);
    }
    if (layout().last) {
        const Tensor logits = linear(tensors_.head, norm(tensors_.final_norm, x), kept);
        x = at::cross_entropy_loss(logits, tokens_to_device(kept.batch.targets));
        kept.loss = static_cast<double>(x.item<float>());
    }
    kept.out = x;
}

Result<std::vector<float>> TorchStage::forward(const MicrobatchKey& key,
                                               std::span<const float> input) {
    HOLD_TRY(check_forward(key, input, kept_.contains(key)));
    return guarded("forward", [&]() -> Result<std::vector<float>> {
        Kept& kept = kept_[key];
        try {
            if (layout().first || layout().last) {
                kept.batch = draw(key);
            }
            kept.in = layout().first ? embed(kept.batch) : to_device(input);
            run_forward(kept);
            return layout().last ? std::vector<float>{} : to_host(kept.out);
        } catch (...) {
            kept_.erase(key);  // half a forward is none
            throw;
        }
    });
}

template <typename Visit>
void TorchStage::visit_leaves(Visit&& visit) const {
    const auto visit_norm = [&](const NormTensors& tensors) {
        visit(tensors.slots.weight, tensors.weight);
        visit(tensors.slots.bias, tensors.bias);
    };
    const auto visit_linear = [&](const LinearTensors& tensors) {
        if (mode_ == Backward::coupled) {
            visit(tensors.slots.weight, tensors.weight);
            visit(tensors.slots.bias, tensors.bias);
        }
    };
    for (const BlockTensors& tensors : tensors_.blocks) {
        visit_norm(tensors.norm1);
        visit_linear(tensors.qkv);
        visit_linear(tensors.projection);
        visit_norm(tensors.norm2);
        visit_linear(tensors.up);
        visit_linear(tensors.down);
    }
    if (layout().last) {
        visit_norm(tensors_.final_norm);
        visit_linear(tensors_.head);
    }
}

void TorchStage::run_backward(Kept& kept, const Tensor& slope) const {
    torch::autograd::variable_list inputs = {kept.in};
    visit_leaves([&](std::size_t offset, const Tensor& leaf) {
        inputs.push_back(leaf);
        kept.finished.push_back({.offset = offset, .gradient = Tensor()});
    });
    const torch::autograd::variable_list slopes =
        slope.defined() ? torch::autograd::variable_list{slope} : torch::autograd::variable_list{};
    const auto gradients = torch::autograd::grad({kept.out}, inputs, slopes);
    for (std::size_t i = 0; i < kept.finished.size(); ++i) {
        kept.finished[i].gradient = gradients.at(i + 1);
    }
    kept.dembedding = gradients.at(0);
}

Result<std::vector<float>> TorchStage::backward_input(const MicrobatchKey& key,
                                                      std::span<const float> output_gradient) {
    HOLD_TRY(check_backward(output_gradient));
    const auto found = kept_.find(key);
    if (found == kept_.end() || found->second.phase != Phase::forward_done) {
        return fail(wrong_phase("backward_input", key, "its forward has to come just before"));
    }
    return guarded("backward_input", [&]() -> Result<std::vector<float>> {
        Kept& kept = found->second;
        try {
            run_backward(kept, layout().last ? Tensor() : to_device(output_gradient));
        } catch (...) {
            kept_.erase(found);  // the graph is spent
            throw;
        }
        kept.phase = Phase::backward_done;
        // Frees the graph and every activation that the queue does not hold.
        kept.out = Tensor();
        kept.in = Tensor();
        if (layout().first) {
            return std::vector<float>{};
        }
        const Tensor din = std::exchange(kept.dembedding, Tensor());
        return to_host(din);
    });
}

void TorchStage::multiply_queue(const Kept& kept) {
    const auto place = [&](std::size_t offset, std::int64_t size) {
        return scratch_.narrow(0, static_cast<std::int64_t>(offset), size);
    };
    for (const Queued& queued : kept.queue) {
        const LinearSlots& slots = queued.slots;
        Tensor weight =
            place(slots.weight, slots.outputs * slots.inputs).view({slots.outputs, slots.inputs});
        Tensor bias = place(slots.bias, slots.outputs);
        at::mm_out(weight, queued.dy.t(), queued.x);
        at::sum_out(bias, queued.dy, at::IntArrayRef{0});
    }
    for (const Finished& done : kept.finished) {
        place(done.offset, done.gradient.numel()).copy_(done.gradient.reshape({-1}));
    }
}

Result<> TorchStage::backward_weight(const MicrobatchKey& key) {
    const auto found = kept_.find(key);
    if (found == kept_.end() || found->second.phase != Phase::backward_done) {
        return fail(wrong_phase("backward_weight", key, "its backward_input has to come before"));
    }
    HOLD_TRY(guarded("backward_weight", [&]() -> Result<> {
        const Kept& kept = found->second;
        multiply_queue(kept);
        const Tensor host = scratch_.to(at::kCPU);
        const std::span<float> gradient(host.data_ptr<float>(), layout().size);
        if (layout().first) {
            // Every other value was overwritten; the embeddings' are added to.
            const auto size = static_cast<std::size_t>(
                (options().model.vocabulary + options().model.context) * options().model.width);
            std::fill_n(gradient.begin(), size, 0.0F);
            add_embedding_gradient(kept.batch, to_host(kept.dembedding), gradient);
        }
        return add_gradient(key, gradient);
    }));
    kept_.erase(found);
    return {};
}

Result<double> TorchStage::loss(const MicrobatchKey& key) const {
    const auto found = kept_.find(key);
    if (!layout().last || found == kept_.end()) {
        return fail(wrong_phase("loss", key, "only the last stage has it, from forward on"));
    }
    return found->second.loss;
}

/// Settings of the whole process, made once: one thread, no approximate or unordered arithmetic.
void prepare_libtorch() {
    static const bool prepared = [] {
        limit_numeric_threads();
        at::set_num_threads(1);
        at::globalContext().setAllowTF32CuBLAS(false);
        if (torch::cuda::is_available()) {
            at::globalContext().setDeterministicAlgorithms(true, false);
        }
        return true;
    }();
    (void)prepared;  // only its side effect matters
}

Result<std::unique_ptr<StageModule>> make(StageOptions options, Backward mode) {
    HOLD_TRY(check_options(options));
    return guarded("make stage", [&]() -> Result<std::unique_ptr<StageModule>> {
        prepare_libtorch();
        return std::make_unique<TorchStage>(std::move(options), mode);
    });
}

}  // namespace
}  // namespace nn

Result<std::unique_ptr<StageModule>> make_torch_stage(StageOptions options) {
    return nn::make(std::move(options), nn::Backward::split);
}

Result<std::unique_ptr<StageModule>> make_coupled_torch_stage(StageOptions options) {
    return nn::make(std::move(options), nn::Backward::coupled);
}

}  // namespace holdfast::training
