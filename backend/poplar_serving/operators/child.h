// One process that runs one PopEF model, and the thread that talks to it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/types.h>

#include "frames.h"

namespace poplar_serving {

// What is started, and how long it may take.
struct Program {
    std::string python;
    // To start Python and load a model: the child itself gives up earlier and says why.
    std::chrono::milliseconds start_limit{420'000};
    // Beyond the limit of a run, which the child itself keeps.
    std::chrono::milliseconds grace{10'000};

    // The interpreter in POPLAR_SERVING_PYTHON, or the one that the library was built with.
    static Program FromEnvironment();
};

struct Bytes {
    std::shared_ptr<const void> owner;
    const char *data;
    size_t size;
};

// Called once: with a fault, or with the outputs' bytes one after the other. By any thread, and must not
// wait.
using Done = std::function<void(const Fault &, std::string outputs)>;

class Child : public std::enable_shared_from_this<Child> {
  public:
    // Starts a process that loads `path`. `label` names the engine in messages. Where none can be started,
    // `Wait` says why.
    static std::shared_ptr<Child> Start(std::string label, const Program &program, const std::string &path,
                                        int64_t timeout_us);

    ~Child() = default;
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;

    // Waits until the model is loaded: its description, or the fault with which the process ended.
    Fault Wait(std::shared_ptr<const Description> *description);

    // An id for `Call`, which `Cancel` may be given from now on.
    uint64_t NewId();
    // Runs the model once it is loaded, on the bytes of all of its inputs, which must have the sizes
    // described.
    void Call(uint64_t id, std::vector<Bytes> inputs, Done done);
    // The call, if it has not ended, ends with kCancelled; what the child makes of it is dropped.
    void Cancel(uint64_t id);

    // Whether it takes no more calls, for which another has to be started.
    bool ended();
    pid_t pid() const { return pid_; }
    // Ends the process without waiting for it.
    void Close();

  private:
    enum class State { kStarting, kReady, kEnded };
    using Clock = std::chrono::steady_clock;
    using Message = std::vector<Bytes>;

    Child(std::string label, const Program &program, int64_t timeout_us);

    Fault Spawn(const std::string &path, int64_t timeout_us);
    void Run();
    Fault Step();
    Fault Poll(bool *readable, bool *writable);
    Fault CheckTime(Clock::time_point *deadline);
    Fault Write();
    Fault Read();
    bool Receive(char *data, size_t size, size_t *received, Fault *fault);
    Fault CheckHeader();
    Fault TakeFrame();
    Fault NoFrame(const std::string &found) const;
    void Progress();
    void HangUp();
    void Push(uint32_t kind, uint64_t id, std::vector<Bytes> body);
    void Wake();
    void Finish(Fault fault);
    std::string Bury(bool by_itself);

    const std::string label_;
    const std::string python_;
    const std::chrono::milliseconds start_limit_, grace_;

    std::mutex mutex_;
    std::condition_variable changed_;
    State state_ = State::kStarting;
    Fault fault_;
    std::shared_ptr<const Description> description_;
    std::map<uint64_t, Done> calls_;
    std::deque<Message> outgoing_;
    Clock::time_point progress_;
    uint64_t next_id_ = 1;
    bool closing_ = false, hung_up_ = false;
    int wake_ = -1;
    int socket_ = -1; // used by the thread, and closed by it under the mutex

    // The thread's own from here on.
    pid_t pid_ = -1;
    size_t sent_ = 0; // bytes of the first piece of the first message
    Header header_{};
    size_t header_received_ = 0;
    std::string body_;
    size_t body_received_ = 0;
};

} // namespace poplar_serving
