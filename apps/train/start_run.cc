#include "apps/train/start_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "apps/files.h"
#include "apps/gather_values.h"
#include "apps/json_text.h"
#include "apps/train/model_info.h"
#include "thinreduce/collective/broadcast.h"
#include "thinreduce/engine/settings.h"
#include "thinreduce/ensure.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::train {
namespace {

namespace fs = std::filesystem;

// Returns about the most bytes that a run writes: two checkpoints and the lines.
std::uint64_t space_needed(const TrainOptions& options, int ranks) {
  constexpr std::uint64_t kLine = 1000;
  const std::uint64_t model = find_model(options.model).parameters * sizeof(float);
  const std::uint64_t optimizer = options.optimizer == "sgd" ? 1 : 2;
  const auto copies = static_cast<std::uint64_t>(ranks);
  const std::uint64_t checkpoint = options.local_steps > 0
                                       ? model * (1 + optimizer + 4) * copies
                                       : model * (1 + optimizer) + 2 * model * copies;
  return 2 * checkpoint + *options.steps * kLine;
}

// Returns which settings differ, and both values of each.
std::string differences(const std::string& first, const std::string& other, std::size_t rank) {
  const Json own = apps::parse_json_or_discard(first);
  const Json theirs = apps::parse_json_or_discard(other);
  if (!own.is_object() || !theirs.is_object()) {
    return fmt::format("the settings of rank {} can't be read",
                       own.is_object() ? rank : std::size_t{0});
  }
  std::string text;
  for (const auto& [name, value] : own.items()) {
    const Json theirs_value = theirs.value(name, Json());
    if (value == theirs_value) continue;
    text += fmt::format("{}{} is {} on rank 0 and {} on rank {}", text.empty() ? "" : ", ", name,
                        value.dump(), theirs_value.dump(), rank);
  }
  return text.empty() ? fmt::format("rank {} has further settings", rank) : text;
}

}  // namespace

void compare_settings(const TrainOptions& options, Transport& transport) {
  Json settings = to_json(options);
  settings["resume"] = options.resume.string();
  settings["stop_after"] = options.stop_after.value_or(0);
  settings["checkpoint_every"] = options.checkpoint_every.value_or(0);
  settings["record"] = options.save_gradients.empty() ? 0 : options.save_every;
  Exchange exchange(transport, options.launch.timeout, {});
  const std::vector<std::string> all = gather_texts(exchange, settings.dump());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw Error(ErrorCode::mismatch,
                fmt::format("ranks 0 and {} were started with different options: {}; start all "
                            "ranks with the same options",
                            rank, differences(all[0], all[rank], rank)));
  }
}

OpenedRun open_run(const TrainOptions& options, Transport& transport) {
  const bool leads = transport.rank() == 0;
  OpenedRun run;
  if (leads && options.resume.empty()) {
    run.folder = RunFolder::create(options, space_needed(options, transport.size()));
  }
  if (!options.resume.empty()) {
    run.state = read_checkpoint(options.resume);
    const auto steps = apps::gather_values(transport, options.launch.timeout, run.state.step);
    for (std::size_t rank = 1; rank < steps.size(); ++rank) {
      if (steps[rank] == steps[0]) continue;
      throw Error(ErrorCode::mismatch,
                  fmt::format("{}: rank 0 has a checkpoint of step {}, but rank {} one of step {}; "
                              "copy the newer run folder to all machines",
                              options.resume.string(), steps[0], rank, steps[rank]));
    }
    if (leads) {
      run.folder = RunFolder::resume(options.resume);
      run.step_seconds = run.folder->step_seconds();
      run.step_seconds.resize(std::min<std::size_t>(run.step_seconds.size(), run.state.step));
    }
  }
  std::array<std::byte, 4096> text{};
  if (leads) {
    const std::string path = run.folder->path().string();
    ensure(path.size() < text.size(), "a path shorter than 4096 characters", path.size(),
           text.size());
    std::memcpy(text.data(), path.data(), path.size());
  }
  Exchange exchange(transport, options.launch.timeout, {});
  broadcast(exchange, 0, text);
  text.back() = std::byte{0};
  run.path = reinterpret_cast<const char*>(text.data());
  return run;
}

std::optional<apps::GradientWriter> start_recording(const TrainOptions& options,
                                                    const Replica& replica, Transport& transport) {
  const fs::path& folder = options.save_gradients;
  if (folder.empty()) return {};
  if (transport.rank() == 0) {
    if (fs::exists(folder / "gradients.json")) {
      if (!options.overwrite) {
        throw Error(ErrorCode::unavailable,
                    fmt::format("{} already holds recorded gradients; replace them with "
                                "--overwrite or choose another folder",
                                folder.string()));
      }
      fs::remove(folder / "gradients.json");
    }
    const std::uint64_t records =
        steps_to_do(options) / options.save_every * static_cast<std::uint64_t>(transport.size());
    apps::require_space(folder, records * replica.parameters() * sizeof(float));
  }
  // The other ranks wait until the folder exists.
  apps::barrier(transport, options.launch.timeout);
  return apps::GradientWriter(apps::RecordingOptions{.folder = folder,
                                                     .model = options.model,
                                                     .data = options.data,
                                                     .ranks = transport.size(),
                                                     .layouts = replica.layouts()},
                              transport.rank());
}

}  // namespace thinreduce::train
