#include "apps/train/record_gradients.h"

#include <optional>

#include "apps/gather_values.h"
#include "apps/gradients.h"
#include "apps/terminal.h"
#include "apps/train/replica.h"
#include "apps/train/schedule.h"
#include "apps/train/start_run.h"

namespace thinreduce::train {

void record_gradients(const TrainOptions& given, const Dataset& data,
                      const std::shared_ptr<Transport>& transport) {
  TrainOptions options = given;
  settle(options, transport->size(), training_samples(options, data));
  compare_settings(options, *transport);
  const Schedule schedule{
      .kind = options.schedule, .peak = *options.learning_rate, .steps = *options.steps};
  Replica replica(options, data, transport);
  std::optional<apps::GradientWriter> writer = start_recording(options, replica, *transport);
  const std::uint64_t steps = steps_to_do(options);
  apps::Progress progress("gradients", steps, options.json || transport->rank() != 0);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const bool record = (step + 1) % options.save_every == 0;
    replica.step({.step = step,
                  .learning_rate = static_cast<double>(static_cast<float>(schedule.at(step))),
                  .last = step + 1 == steps,
                  .record = record ? &*writer : nullptr});
    if (record) {
      // Rank 0 lists the step after all ranks have written it.
      apps::barrier(*transport, options.launch.timeout);
      writer->add_step(step + 1);
    }
    progress.advance();
  }
}

}  // namespace thinreduce::train
