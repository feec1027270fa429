// The engines of this process: each runs one PopEF file under one name, in a child process that all of its
// callers share, and ends with the last of them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "child.h"

namespace poplar_serving {

class Engine {
  public:
    // The engine `name` of the file at `path`, which is another one once the file was replaced. Its process
    // is started by `Ready`.
    static Fault Open(const std::string &name, const std::string &path, int64_t timeout_us,
                      const Program &program, std::shared_ptr<Engine> *engine);
    // The engine of that number; null where it has ended or never was.
    static std::shared_ptr<Engine> Find(int32_t number);

    Engine(int32_t number, std::string name, std::string path, int64_t timeout_us, Program program);
    ~Engine();
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // A process that has the model loaded, waiting for it, and starting another where the last one ended.
    Fault Ready(std::shared_ptr<Child> *child, std::shared_ptr<const Description> *description);

    int32_t number() const { return number_; }
    const std::string &name() const { return name_; }

  private:
    const int32_t number_;
    const std::string name_, path_;
    const int64_t timeout_us_;
    const Program program_;
    const pid_t owner_;

    std::mutex mutex_;
    std::shared_ptr<Child> child_;
};

} // namespace poplar_serving
