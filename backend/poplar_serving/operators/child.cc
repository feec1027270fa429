#include "child.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef POPLAR_SERVING_PYTHON
#define POPLAR_SERVING_PYTHON "python3"
#endif

extern char **environ;

namespace poplar_serving {
namespace {

constexpr int kChildDescriptor = 3;
// Not from the folder that the server happens to run in.
constexpr const char *kScript = "import sys; sys.path[:] = filter(None, sys.path); "
                                "from poplar_serving.child import main; main(3)";
constexpr size_t kMostPieces = 64;
constexpr std::chrono::milliseconds kDeath{1'000}, kLook{5};

std::string DescribeError(int error) { return std::strerror(error); }

Bytes Own(std::string text) {
    auto owner = std::make_shared<const std::string>(std::move(text));
    return {owner, owner->data(), owner->size()};
}

// Both ends of a connection, closed where nobody has taken them.
struct Ends {
    int ours = -1, theirs = -1;
    ~Ends() {
        if (ours >= 0) close(ours);
        if (theirs >= 0) close(theirs);
    }
};

int SpawnPython(const std::string &python, int theirs, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t signals;
    if (int error = posix_spawn_file_actions_init(&actions)) return error;
    if (int error = posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return error;
    }
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigaddset(&signals, SIGPIPE);
    sigaddset(&signals, SIGCHLD);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, theirs, kChildDescriptor);
    if (error == 0) {
        const char *words[] = {python.c_str(), "-c", kScript, nullptr};
        error = posix_spawnp(pid, python.c_str(), &actions, &attributes, const_cast<char **>(words), environ);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

std::string DescribeStatus(int status) {
    if (WIFSIGNALED(status)) return std::string("signal ") + strsignal(WTERMSIG(status));
    return "exit status " + std::to_string(WEXITSTATUS(status));
}

} // namespace

Program Program::FromEnvironment() {
    Program program;
    const char *given = std::getenv("POPLAR_SERVING_PYTHON");
    program.python = given != nullptr && *given != '\0' ? given : POPLAR_SERVING_PYTHON;
    return program;
}

Child::Child(std::string label, const Program &program, int64_t timeout_us)
    : label_(std::move(label)), python_(program.python), start_limit_(program.start_limit),
      grace_(program.grace +
             std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::microseconds(timeout_us))),
      progress_(Clock::now()) {}

std::shared_ptr<Child> Child::Start(std::string label, const Program &program, const std::string &path,
                                    int64_t timeout_us) {
    std::shared_ptr<Child> child(new Child(std::move(label), program, timeout_us));
    Fault fault = child->Spawn(path, timeout_us);
    if (!fault) {
        try {
            std::thread([child] { child->Run(); }).detach();
        } catch (const std::system_error &error) {
            fault = {kResourceExhausted, child->label_ + ": no thread could be started: " + error.what()};
        }
    }
    if (fault) child->Finish(std::move(fault));
    return child;
}

Fault Child::Spawn(const std::string &path, int64_t timeout_us) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return {kResourceExhausted, label_ + ": no connection to a process: " + DescribeError(errno)};
    }
    Ends ends{pair[0], pair[1]};
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0 || fcntl(ends.ours, F_SETFL, O_NONBLOCK) != 0) {
        return {kResourceExhausted, label_ + ": no connection to a process: " + DescribeError(errno)};
    }
    if (int error = SpawnPython(python_, ends.theirs, &pid_)) {
        pid_ = -1;
        return {kFailedPrecondition,
                label_ + ": the process that runs its model cannot be started: " + Quote(python_) + ": " +
                    DescribeError(error) +
                    "; name the Python interpreter that has poplar-triton installed in the environment "
                    "variable POPLAR_SERVING_PYTHON"};
    }
    socket_ = std::exchange(ends.ours, -1);
    std::string timeout(reinterpret_cast<const char *>(&timeout_us), sizeof(timeout_us));
    Push(kStart, 0, {Own(timeout + path)});
    return {};
}

Fault Child::Wait(std::shared_ptr<const Description> *description) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::kStarting; });
    if (state_ == State::kEnded) return fault_;
    *description = description_;
    return {};
}

uint64_t Child::NewId() {
    std::lock_guard<std::mutex> lock(mutex_);
    return next_id_++;
}

void Child::Call(uint64_t id, std::vector<Bytes> inputs, Done done) {
    Fault fault;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (state_ == State::kReady && !closing_) {
            if (calls_.empty()) progress_ = Clock::now();
            calls_.emplace(id, std::move(done));
            Push(kCall, id, std::move(inputs));
            Wake();
            return;
        }
        fault = fault_ ? fault_ : Fault{kUnavailable, label_ + ": its process is being ended"};
    }
    done(fault, {});
}

void Child::Cancel(uint64_t id) {
    Done done;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = calls_.find(id);
        if (found == calls_.end()) return;
        done = std::move(found->second);
        calls_.erase(found);
    }
    done({kCancelled, label_ + ": the call was cancelled"}, {});
}

bool Child::ended() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kEnded || hung_up_ || closing_) return true;
    // Asked for, as the thread may not have run since the process died: the next call would go to it in vain.
    pollfd end{socket_, POLLRDHUP, 0};
    return poll(&end, 1, 0) > 0;
}

void Child::Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    Wake();
}

void Child::Run() {
    Fault fault;
    try {
        do fault = Step();
        while (!fault);
    } catch (const std::bad_alloc &) {
        fault = {kResourceExhausted, label_ + ": not enough memory for an answer"};
    }
    Finish(std::move(fault));
}

Fault Child::Step() {
    bool readable = false, writable = false;
    Fault fault = Poll(&readable, &writable);
    // Read first: a child that died has perhaps said why.
    if (!fault && readable) fault = Read();
    if (!fault && writable) fault = Write();
    return fault;
}

Fault Child::Poll(bool *readable, bool *writable) {
    Clock::time_point deadline;
    if (Fault fault = CheckTime(&deadline)) return fault;
    std::array<pollfd, 2> ends{{{socket_, POLLIN, 0}, {wake_, POLLIN, 0}}};
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!outgoing_.empty() && !hung_up_) ends[0].events |= POLLOUT;
    }
    int wait_ms = -1;
    if (deadline != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        wait_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
    }
    if (poll(ends.data(), ends.size(), wait_ms) < 0 && errno != EINTR) {
        return {kInternal, label_ + ": poll: " + DescribeError(errno)};
    }
    if (ends[1].revents != 0) {
        uint64_t count;
        if (read(wake_, &count, sizeof(count)) < 0 && errno != EAGAIN && errno != EINTR) {
            return {kInternal, label_ + ": eventfd: " + DescribeError(errno)};
        }
    }
    *readable = (ends[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
    *writable = (ends[0].revents & POLLOUT) != 0;
    return {};
}

// Whether the child is in time, and until when it has to move.
Fault Child::CheckTime(Clock::time_point *deadline) {
    std::lock_guard<std::mutex> lock(mutex_);
    *deadline = Clock::time_point::max();
    if (closing_) return {kUnavailable, label_ + ": its process was ended, as nothing uses it any more"};
    if (state_ == State::kStarting) {
        *deadline = progress_ + start_limit_;
    } else if (!calls_.empty()) {
        *deadline = progress_ + description_->run_limit + grace_;
    }
    if (Clock::now() < *deadline) return {};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - progress_).count();
    return {kDeadlineExceeded, label_ + ": its process " +
                                   (state_ == State::kStarting ? "was not ready" : "answered nothing") +
                                   " within " + std::to_string(ms) + " ms and was ended"};
}

Fault Child::Write() {
    for (;;) {
        Message *message;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (!outgoing_.empty() && outgoing_.front().empty()) outgoing_.pop_front();
            if (outgoing_.empty()) return {};
            message = &outgoing_.front(); // stays where it is: others add behind it only
        }
        std::array<iovec, kMostPieces> pieces;
        const size_t count = std::min(message->size(), kMostPieces);
        for (size_t i = 0; i < count; ++i) {
            const Bytes &piece = (*message)[i];
            const size_t skipped = i == 0 ? sent_ : 0;
            pieces[i] = {const_cast<char *>(piece.data) + skipped, piece.size - skipped};
        }
        msghdr parts{};
        parts.msg_iov = pieces.data();
        parts.msg_iovlen = count;
        const ssize_t written = sendmsg(socket_, &parts, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written < 0) {
            if (errno == EAGAIN || errno == EINTR) return {};
            // The child is gone; what it has said, and how it ended, is read next.
            HangUp();
            return {};
        }
        Progress();
        sent_ += static_cast<size_t>(written);
        size_t whole = 0;
        while (whole < count && sent_ >= (*message)[whole].size) sent_ -= (*message)[whole++].size;
        std::lock_guard<std::mutex> lock(mutex_);
        message->erase(message->begin(), message->begin() + static_cast<ptrdiff_t>(whole));
    }
}

// True once `size` bytes are there.
bool Child::Receive(char *data, size_t size, size_t *received, Fault *fault) {
    while (*received < size) {
        const ssize_t count = recv(socket_, data + *received, size - *received, MSG_DONTWAIT);
        if (count > 0) {
            Progress();
            *received += static_cast<size_t>(count);
        } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
            HangUp();
            *fault = {kUnavailable, label_ + ": its process died"};
            return false;
        } else if (errno == EAGAIN) {
            return false;
        }
    }
    return true;
}

Fault Child::Read() {
    Fault fault;
    for (;;) {
        if (header_received_ < kHeaderBytes) {
            auto *place = reinterpret_cast<char *>(&header_);
            if (!Receive(place, kHeaderBytes, &header_received_, &fault)) return fault;
            if ((fault = CheckHeader())) return fault;
            body_.resize(header_.body_bytes);
            body_received_ = 0;
        }
        if (!Receive(body_.data(), body_.size(), &body_received_, &fault)) return fault;
        header_received_ = 0;
        if ((fault = TakeFrame())) return fault;
    }
}

Fault Child::NoFrame(const std::string &found) const {
    return {kInternal, label_ + ": its process sent what is no answer: " + found +
                           "; is POPLAR_SERVING_PYTHON the Python of this version of poplar-triton?"};
}

Fault Child::CheckHeader() {
    const bool starting = description_ == nullptr;
    uint64_t most = 0;
    if (header_.kind == kFault) {
        most = kMostTextBytes;
    } else if (header_.kind == kReady && starting) {
        most = kMostDescriptionBytes;
    } else if (header_.kind == kResult && !starting) {
        most = description_->output_bytes();
        if (header_.body_bytes != most) {
            return NoFrame("outputs of " + std::to_string(header_.body_bytes) + " bytes, expected " +
                           std::to_string(most));
        }
    } else {
        return NoFrame("a frame of kind " + std::to_string(header_.kind));
    }
    if (header_.body_bytes > most) {
        return NoFrame("a frame of " + std::to_string(header_.body_bytes) + " bytes, expected at most " +
                       std::to_string(most));
    }
    return {};
}

Fault Child::TakeFrame() {
    if (header_.kind == kReady) {
        auto description = std::make_shared<Description>();
        if (!ParseDescription(body_, description.get())) return NoFrame("a damaged description");
        std::lock_guard<std::mutex> lock(mutex_);
        description_ = std::move(description);
        state_ = State::kReady;
        changed_.notify_all();
        return {};
    }
    Fault fault;
    if (header_.kind == kFault) {
        const bool known = header_.code != kOk && header_.code <= kUnauthenticated;
        fault = {known ? header_.code : kInternal, label_ + ": " + body_};
        if (description_ == nullptr) return fault;
        body_.clear();
    }
    Done done;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = calls_.find(header_.id);
        if (found == calls_.end()) return {}; // cancelled
        done = std::move(found->second);
        calls_.erase(found);
    }
    done(fault, std::move(body_));
    body_ = {};
    return {};
}

void Child::Progress() {
    std::lock_guard<std::mutex> lock(mutex_);
    // Python that starts may be slow, and sends nothing until the model is loaded.
    if (state_ == State::kReady) progress_ = Clock::now();
}

// Known before it is buried: until then calls would come to it in vain.
void Child::HangUp() {
    std::lock_guard<std::mutex> lock(mutex_);
    hung_up_ = true;
}

void Child::Push(uint32_t kind, uint64_t id, std::vector<Bytes> body) {
    Header header{kind, 0, id, 0};
    for (const Bytes &piece : body) header.body_bytes += piece.size;
    Message message{Own(std::string(reinterpret_cast<const char *>(&header), kHeaderBytes))};
    std::move(body.begin(), body.end(), std::back_inserter(message));
    outgoing_.push_back(std::move(message));
}

void Child::Wake() {
    const uint64_t one = 1;
    if (wake_ >= 0 && write(wake_, &one, sizeof(one)) < 0) {
        // Full: it is awake already.
    }
}

// Ends the process, and everything that waits for it with `fault`.
void Child::Finish(Fault fault) {
    const bool died = hung_up_;
    const std::string status = Bury(died);
    if (died && fault.code == kUnavailable) {
        fault.text += status.empty() ? "" : " (" + status + ")";
        fault.text += "; the log has what it said last. The next call starts another";
        if (description_ == nullptr) {
            fault.text += "; " + Quote(python_) +
                          " has to be a Python that has poplar-triton installed: name one "
                          "in the environment variable POPLAR_SERVING_PYTHON";
        }
    }
    std::map<uint64_t, Done> calls;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        state_ = State::kEnded;
        fault_ = fault;
        calls.swap(calls_);
        outgoing_.clear();
        if (wake_ >= 0) close(std::exchange(wake_, -1));
        changed_.notify_all();
    }
    for (auto &[id, done] : calls) done(fault, {});
}

// How the process ended, "" where nobody can say. One that hung up has a moment to end by itself.
std::string Child::Bury(bool by_itself) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (socket_ >= 0) close(std::exchange(socket_, -1));
        hung_up_ = true;
    }
    if (pid_ < 0) return "";
    int status = 0;
    pid_t found = 0;
    if (by_itself) {
        for (auto waited = std::chrono::milliseconds(0); found == 0 && waited < kDeath; waited += kLook) {
            found = waitpid(pid_, &status, WNOHANG);
            if (found == 0) std::this_thread::sleep_for(kLook);
        }
    }
    if (found == 0) {
        kill(pid_, SIGKILL);
        do found = waitpid(pid_, &status, 0);
        while (found < 0 && errno == EINTR);
    }
    return found == pid_ ? DescribeStatus(status) : "";
}

} // namespace poplar_serving
