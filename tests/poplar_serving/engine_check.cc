// Does with engines what the lines of standard input say, and prints a line for each: the operators without
// TensorFlow, for tests.
//
//     python PATH               the interpreter of the engines opened from here on
//     limits START_MS GRACE_MS  the limits of those
//     open NAME FILE            "engine NUMBER", once it is ready
//     call NUMBER COUNT HEX     COUNT calls at once, each on those bytes: "result HEX", or "fault CODE TEXT",
//     or
//                               "different" where they are not equal
//     cancel NUMBER HEX         a call that is cancelled at once
//     pid NUMBER                of the process
//     fork NUMBER               a call by a fork of this process
//     drop NUMBER               nobody uses the engine any more
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "engine.h"

using namespace poplar_serving;

namespace {

std::map<int32_t, std::shared_ptr<Engine>> engines;
Program program = Program::FromEnvironment();

std::string Text(const Fault &fault) { return "fault " + std::to_string(fault.code) + " " + fault.text; }

std::string FromHex(const std::string &hex) {
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

std::string ToHex(const std::string &bytes) {
    std::ostringstream hex;
    for (unsigned char byte : bytes) hex << "0123456789abcdef"[byte >> 4] << "0123456789abcdef"[byte & 15];
    return hex.str();
}

std::string Open(std::istream &words) {
    std::string name, path;
    words >> name >> std::ws;
    std::getline(words, path);
    std::shared_ptr<Engine> engine;
    if (Fault fault = Engine::Open(name, path, 5000, program, &engine)) return Text(fault);
    std::shared_ptr<Child> child;
    std::shared_ptr<const Description> description;
    if (Fault fault = engine->Ready(&child, &description)) return Text(fault);
    engines[engine->number()] = engine;
    return "engine " + std::to_string(engine->number());
}

std::string Call(std::istream &words, bool cancel) {
    int32_t number;
    int count = 1;
    std::string hex;
    words >> number;
    if (!cancel) words >> count;
    words >> hex;
    std::shared_ptr<Engine> engine = Engine::Find(number);
    if (engine == nullptr) return "no engine";
    auto bytes = std::make_shared<const std::string>(FromHex(hex));
    std::mutex mutex;
    std::condition_variable ended;
    std::multiset<std::string> answers;
    auto call = [&] {
        std::shared_ptr<Child> child;
        std::shared_ptr<const Description> description;
        auto done = [&](const Fault &fault, std::string outputs) {
            std::lock_guard<std::mutex> lock(mutex);
            answers.insert(fault ? Text(fault) : "result " + ToHex(outputs));
            ended.notify_all();
        };
        if (Fault fault = engine->Ready(&child, &description)) return done(fault, "");
        const uint64_t id = child->NewId();
        child->Call(id, {{bytes, bytes->data(), bytes->size()}}, done);
        if (cancel) child->Cancel(id);
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back(call);
    for (std::thread &thread : threads) thread.join();
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait(lock, [&] { return answers.size() == static_cast<size_t>(count); });
    return *answers.begin() == *answers.rbegin() ? *answers.begin() : "different";
}

std::string Pid(std::istream &words) {
    int32_t number;
    words >> number;
    std::shared_ptr<Child> child;
    std::shared_ptr<const Description> description;
    if (Fault fault = engines.at(number)->Ready(&child, &description)) return Text(fault);
    return "pid " + std::to_string(child->pid());
}

std::string Fork(std::istream &words) {
    int32_t number;
    words >> number;
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t pid = fork();
    if (pid == 0) {
        std::shared_ptr<Child> child;
        std::shared_ptr<const Description> description;
        const std::string text = Text(engines.at(number)->Ready(&child, &description));
        _exit(write(ends[1], text.data(), text.size()) < 0);
    }
    close(ends[1]);
    char text[1000];
    const ssize_t size = read(ends[0], text, sizeof(text));
    close(ends[0]);
    waitpid(pid, nullptr, 0);
    return size < 0 ? "nothing" : std::string(text, static_cast<size_t>(size));
}

std::string Do(const std::string &line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "open") return Open(words);
    if (verb == "call") return Call(words, false);
    if (verb == "cancel") return Call(words, true);
    if (verb == "pid") return Pid(words);
    if (verb == "fork") return Fork(words);
    if (verb == "python") return std::getline(words >> std::ws, program.python), "";
    if (verb == "limits") {
        int64_t start_ms, grace_ms;
        words >> start_ms >> grace_ms;
        program.start_limit = std::chrono::milliseconds(start_ms);
        program.grace = std::chrono::milliseconds(grace_ms);
        return "";
    }
    int32_t number;
    words >> number;
    engines.erase(number);
    return "";
}

} // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) std::cout << Do(line) << std::endl;
    engines.clear();
}
