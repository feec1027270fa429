#include "engine.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

namespace poplar_serving {
namespace {

// Of a path, in Linux, and of a name that anybody could read.
constexpr size_t kMostPathBytes = 4096, kMostNameBytes = 1024;

// Name and path, and which file that is: device, number, size and time of its last change.
using Key = std::tuple<std::string, std::string, dev_t, ino_t, off_t, time_t, long>;

struct Table {
    std::mutex mutex;
    std::map<Key, std::weak_ptr<Engine>> by_key;
    std::map<int32_t, std::weak_ptr<Engine>> by_number;
    int32_t next_number = 1;

    void Forget() {
        for (auto it = by_key.begin(); it != by_key.end();)
            it = it->second.expired() ? by_key.erase(it) : ++it;
        for (auto it = by_number.begin(); it != by_number.end();) {
            it = it->second.expired() ? by_number.erase(it) : ++it;
        }
    }
};

// Never destroyed: threads may ask for engines while the process ends.
Table &Engines() {
    static auto *table = new Table;
    return *table;
}

std::string Label(const std::string &name) { return "engine " + Quote(name); }

} // namespace

Fault Engine::Open(const std::string &name, const std::string &path, int64_t timeout_us,
                   const Program &program, std::shared_ptr<Engine> *engine) {
    if (name.empty() || name.size() > kMostNameBytes) {
        return {kInvalidArgument, "engine_name: expected 1 to " + std::to_string(kMostNameBytes) +
                                      " bytes, found " + std::to_string(name.size())};
    }
    const std::string what = Label(name) + ": filename " + Quote(path);
    if (path.empty() || path.size() > kMostPathBytes || path.find('\0') != std::string::npos) {
        return {kInvalidArgument, what + ": expected the path of a PopEF file"};
    }
    struct stat found{};
    if (stat(path.c_str(), &found) != 0) {
        return {errno == ENOENT || errno == ENOTDIR ? kNotFound : kFailedPrecondition,
                what + ": expected a PopEF file, found: " + std::strerror(errno) +
                    "; export the model again, or copy the whole folder of the SavedModel with its assets"};
    }
    if (!S_ISREG(found.st_mode)) {
        return {kInvalidArgument, what + ": expected a PopEF file, found what is no file"};
    }
    const Key key{
        name, path, found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
    Table &table = Engines();
    std::lock_guard<std::mutex> lock(table.mutex);
    if ((*engine = table.by_key[key].lock())) return {};
    table.Forget();
    *engine = std::make_shared<Engine>(table.next_number++, name, path, timeout_us, program);
    table.by_key[key] = *engine;
    table.by_number[(*engine)->number()] = *engine;
    return {};
}

std::shared_ptr<Engine> Engine::Find(int32_t number) {
    Table &table = Engines();
    std::lock_guard<std::mutex> lock(table.mutex);
    auto found = table.by_number.find(number);
    return found == table.by_number.end() ? nullptr : found->second.lock();
}

Engine::Engine(int32_t number, std::string name, std::string path, int64_t timeout_us, Program program)
    : number_(number), name_(std::move(name)), path_(std::move(path)), timeout_us_(timeout_us),
      program_(std::move(program)), owner_(getpid()) {}

Engine::~Engine() {
    if (child_ != nullptr && owner_ == getpid()) child_->Close();
}

Fault Engine::Ready(std::shared_ptr<Child> *child, std::shared_ptr<const Description> *description) {
    if (owner_ != getpid()) {
        return {kFailedPrecondition,
                Label(name_) + ": it was started by process " + std::to_string(owner_) +
                    ", of which this one is a fork; load the SavedModel in this process instead"};
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (child_ == nullptr || child_->ended()) {
            child_ = Child::Start(Label(name_), program_, path_, timeout_us_);
        }
        *child = child_;
    }
    return (*child)->Wait(description);
}

} // namespace poplar_serving
