#include "frames.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace poplar_serving {
namespace {

constexpr uint32_t kMostDimensions = 64;
constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr uint64_t kMostRunLimitMs = uint64_t{1} << 40;
constexpr size_t kMostQuoted = 512;

struct Type {
    uint32_t number;
    uint32_t bytes;
    const char *name;
};

constexpr std::array<Type, 7> kTypes{{{1, 4, "float32"},
                                      {3, 4, "int32"},
                                      {4, 1, "uint8"},
                                      {6, 1, "int8"},
                                      {19, 2, "float16"},
                                      {2, 8, "float64"},
                                      {9, 8, "int64"}}};

const Type *FindType(uint32_t number) {
    const auto *found =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const Type &type) { return type.number == number; });
    return found == kTypes.end() ? nullptr : found;
}

class Reader {
  public:
    explicit Reader(const std::string &body) : body_(body) {}

    template <typename T> bool Read(T *value) {
        if (left() < sizeof(T)) return false;
        std::memcpy(value, body_.data() + place_, sizeof(T));
        place_ += sizeof(T);
        return true;
    }

    bool Read(std::string *text, uint32_t bytes) {
        if (left() < bytes) return false;
        text->assign(body_, place_, bytes);
        place_ += bytes;
        return true;
    }

    size_t left() const { return body_.size() - place_; }

  private:
    const std::string &body_;
    size_t place_ = 0;
};

bool ReadTensor(Reader *reader, TensorInfo *info) {
    uint32_t name_bytes = 0, rank = 0;
    if (!reader->Read(&info->type) || !reader->Read(&name_bytes) || !reader->Read(&rank)) return false;
    const Type *type = FindType(info->type);
    if (type == nullptr || rank > kMostDimensions || !reader->Read(&info->name, name_bytes)) return false;
    info->bytes = type->bytes;
    for (uint32_t i = 0; i < rank; ++i) {
        int64_t size = 0;
        if (!reader->Read(&size) || size < 0 || static_cast<uint64_t>(size) > kMostBytes) return false;
        info->shape.push_back(size);
        if (size > 0 && info->bytes > kMostBytes / static_cast<uint64_t>(size)) return false;
        info->bytes *= static_cast<uint64_t>(size);
    }
    return true;
}

bool ReadTensors(Reader *reader, uint32_t count, std::vector<TensorInfo> *infos) {
    // Nothing is allocated by a count: each tensor takes bytes of the body.
    for (uint32_t i = 0; i < count; ++i) {
        TensorInfo info;
        if (!ReadTensor(reader, &info)) return false;
        infos->push_back(std::move(info));
    }
    return true;
}

} // namespace

uint64_t Description::output_bytes() const {
    uint64_t sum = 0;
    for (const TensorInfo &output : outputs) sum += output.bytes;
    return sum;
}

bool ParseDescription(const std::string &body, Description *description) {
    Reader reader(body);
    uint64_t limit_ms = 0;
    uint32_t inputs = 0, outputs = 0;
    if (!reader.Read(&limit_ms) || !reader.Read(&inputs) || !reader.Read(&outputs)) return false;
    description->run_limit = std::chrono::milliseconds(std::min(limit_ms, kMostRunLimitMs));
    return ReadTensors(&reader, inputs, &description->inputs) &&
           ReadTensors(&reader, outputs, &description->outputs) && reader.left() == 0;
}

std::string Quote(const std::string &text) {
    static const char *kDigits = "0123456789abcdef";
    std::string quoted = "'";
    for (size_t i = 0; i < std::min(text.size(), kMostQuoted); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte >= 0x20 && byte < 0x7f) {
            quoted += text[i];
        } else {
            quoted += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
        }
    }
    return quoted + (text.size() > kMostQuoted ? "...'" : "'");
}

std::string Describe(uint32_t type, const std::vector<int64_t> &shape) {
    const Type *found = FindType(type);
    std::string text = found != nullptr ? found->name : "type " + std::to_string(type);
    text += " [";
    for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(shape[i]);
    return text + "]";
}

} // namespace poplar_serving
