#include "apps/train/checkpoints.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>

#include "apps/files.h"
#include "apps/gather_values.h"
#include "thinreduce/wire/checksum.h"

namespace thinreduce::train {
namespace {

namespace fs = std::filesystem;

// With local steps the ranks' parameters and optimizers differ, and each saves its own.
std::string model_file(const TrainOptions& options, const Transport& transport) {
  return options.local_steps > 0 ? fmt::format("model-{}.bin", transport.rank()) : "model.bin";
}

// The checksum of all ranks' models stands in for that of rank 0's.
void gather_checksums(const TrainOptions& options, Transport& transport, Checkpoint& state) {
  const auto all = apps::gather_values(transport, options.launch.timeout, state.model_checksum);
  state.model_checksum = checksum(std::as_bytes(std::span(all)));
}

}  // namespace

void save_run(const TrainOptions& options, const fs::path& run, Transport& transport,
              Replica& replica, Checkpoint& state) {
  const fs::path folder = run / state.folder();
  fs::create_directories(folder);
  if (options.local_steps > 0) {
    // Before the session, because this waits for the exchanges under way.
    write_file(folder / fmt::format("rank-{}.local", transport.rank()), replica.save_local_steps());
  }
  replica.session().save(folder / fmt::format("rank-{}.state", transport.rank()));
  if (transport.rank() == 0 || options.local_steps > 0) {
    const auto model = replica.save();
    state.model_checksum = checksum(model);
    write_file(folder / model_file(options, transport), model);
  }
  if (options.local_steps > 0) gather_checksums(options, transport, state);
  apps::barrier(transport, options.launch.timeout);
  if (transport.rank() != 0) return;
  write_checkpoint(run, state);
  remove_old_checkpoints(run, state);
}

void load_run(const TrainOptions& options, const fs::path& run, Transport& transport,
              Replica& replica, Checkpoint& state) {
  const fs::path folder = run / state.folder();
  const auto model = read_file(folder / model_file(options, transport));
  const std::uint64_t expected = state.model_checksum;
  state.model_checksum = checksum(model);
  if (options.local_steps > 0) gather_checksums(options, transport, state);
  if (state.model_checksum != expected) {
    throw Error(
        ErrorCode::bad_state,
        fmt::format("{} is cut or altered: {} checksum is {:016x}, but checkpoint.json says "
                    "{:016x}; restore the file or start the run again",
                    (folder / model_file(options, transport)).string(),
                    options.local_steps > 0 ? "or that of another rank: their" : "its",
                    state.model_checksum, expected));
  }
  replica.load(model);
  if (options.local_steps > 0) {
    replica.load_local_steps(read_file(folder / fmt::format("rank-{}.local", transport.rank())));
  }
  replica.session().load(folder / fmt::format("rank-{}.state", transport.rank()));
  replica.check_replicas(state.step);
}

}  // namespace thinreduce::train
