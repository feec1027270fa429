// What goes between the operators and the process that runs a model, and what both know of the model. Nothing
// here knows TensorFlow.
//
// Frames of a header and a body, all numbers little-endian; child.py has the other side:
//
//    0         4         8                   16                  24
//    +---------+---------+-------------------+-------------------+-----------
//    | kind    | code    | id of the call    | bytes of the body | the body
//    +---------+---------+-------------------+-------------------+-----------
//
//    to the child    start (1)   timeout in microseconds (8 bytes), path of the PopEF file
//                    call (2)    the inputs' bytes, one after the other
//    from the child  ready (3)   the description of the model
//                    result (4)  the outputs' bytes, one after the other
//                    fault (5)   what is wrong, one line; its code is gRPC's
//
//    description     the limit of a run in milliseconds (8 bytes), numbers of inputs and outputs (4 bytes
//    each),
//                    then each: TensorFlow's number of its type, bytes of its name, number of its dimensions
//                    (4 bytes each), its name, its dimensions (8 bytes each)
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace poplar_serving {

// gRPC's numbers, which are TensorFlow's.
enum Code : uint32_t {
    kOk = 0,
    kCancelled = 1,
    kInvalidArgument = 3,
    kDeadlineExceeded = 4,
    kNotFound = 5,
    kResourceExhausted = 8,
    kFailedPrecondition = 9,
    kInternal = 13,
    kUnavailable = 14,
    kUnauthenticated = 16,
};

struct Fault {
    uint32_t code = kOk;
    std::string text;

    explicit operator bool() const { return code != kOk; }
};

enum Kind : uint32_t { kStart = 1, kCall = 2, kReady = 3, kResult = 4, kFault = 5 };

struct Header {
    uint32_t kind;
    uint32_t code;
    uint64_t id;
    uint64_t body_bytes;
};

constexpr size_t kHeaderBytes = sizeof(Header);
static_assert(kHeaderBytes == 24, "a header has no padding");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers are read as they lie in memory");

// Of a fault's text and of a description: far more than either needs.
constexpr uint64_t kMostTextBytes = 1 << 16;
constexpr uint64_t kMostDescriptionBytes = 1 << 24;

struct TensorInfo {
    std::string name;
    uint32_t type = 0; // TensorFlow's number
    std::vector<int64_t> shape;
    uint64_t bytes = 0;
};

struct Description {
    std::chrono::milliseconds run_limit{0};
    std::vector<TensorInfo> inputs, outputs;

    uint64_t output_bytes() const;
};

// Reads the body of a ready frame; false where it is none.
bool ParseDescription(const std::string &body, Description *description);

// `text` in quotes, on one line of ASCII of a bounded length: names and paths are strangers' input.
std::string Quote(const std::string &text);

// A tensor's type and shape, as in "float32 [4,3]".
std::string Describe(uint32_t type, const std::vector<int64_t> &shape);

} // namespace poplar_serving
