// Threads and their memory.

#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "plan.h"

namespace {

// Bump allocator of one thread, reset for each task. Small arenas are kept between calls, because new pages cost more
// than the attention of a short sequence.
class Arena {
 public:
  ~Arena() { std::free(base_); }
  bool reserve(size_t bytes) {
    used_ = 0;
    if (bytes <= size_) return true;
    std::free(base_);  // no need to keep the contents: all tasks of a call reserve the same size
    size_ = round_up(bytes, 4096);
    base_ = static_cast<char*>(std::aligned_alloc(64, size_));
    if (!base_) size_ = 0;
    return base_ != nullptr;
  }
  float* floats(int64_t count) {
    float* p = reinterpret_cast<float*>(base_ + used_);
    used_ += bytes(count);
    return p;
  }
  void trim() {
    if (size_ <= kKeep) return;
    std::free(base_);
    base_ = nullptr;
    size_ = 0;
  }
  static size_t bytes(int64_t count) { return round_up(count * sizeof(float), 64); }

 private:
  static constexpr size_t kKeep = 8 << 20;
  char* base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};
thread_local Arena arena;

struct Team {
  void (*work)(const Plan&, int64_t);
  const Plan* plan;
  int64_t tasks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
};
thread_local std::atomic<bool>* task_failed = nullptr;  // set by a task that runs out of memory
thread_local int64_t packed_head = -1;  // the head whose packed position tables are at the front of this thread's arena

void run_member(void* data) {
  Team& team = *static_cast<Team*>(data);
  task_failed = &team.failed;
  packed_head = -1;
  for (int64_t task; (task = team.next.fetch_add(1, std::memory_order_relaxed)) < team.tasks;)
    team.work(*team.plan, task);
  arena.trim();
}

Status run_tasks(const Plan& plan, int64_t tasks, int64_t threads, void (*work)(const Plan&, int64_t)) {
  Team team;
  team.work = work;
  team.plan = &plan;
  team.tasks = tasks;
  threads = std::min(threads, tasks);
  if (threads <= 1) {
    run_member(&team);
  } else if (plan.p.gomp_parallel) {
    plan.p.gomp_parallel(run_member, &team, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    try {
      for (int64_t t = 1; t < threads; t++) others.emplace_back(run_member, &team);
    } catch (const std::exception&) {
      // The system has no more threads or memory. The threads that did start do all the work.
    }
    run_member(&team);
    for (std::thread& t : others) t.join();
  }
  return team.failed ? kOutOfMemory : kOk;
}

}  // namespace
