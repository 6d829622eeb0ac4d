#include "apps/train/evaluate.h"

#include <algorithm>

#include "apps/gather_values.h"

namespace thinreduce::train {

Evaluation evaluate(Network& network, const Feed& feed, Transport& transport,
                    const EvaluationSettings& settings) {
  // Samples whose activations stay in the caches.
  const std::size_t batch = settings.is_language_model ? 16 : 250;
  const torch::NoGradGuard no_gradients;
  const std::size_t samples = std::min(settings.samples, feed.test_samples());
  const auto rank = static_cast<std::size_t>(transport.rank());
  const auto ranks = static_cast<std::size_t>(transport.size());
  struct Sums {
    double loss = 0;
    double right = 0;
    double targets = 0;  // one per image, or one per character
  } own;
  network.eval();
  for (std::size_t first = samples * rank / ranks; first < samples * (rank + 1) / ranks;) {
    const std::size_t count = std::min(batch, samples * (rank + 1) / ranks - first);
    const Samples test = feed.test(first, count);
    const auto scores = network.forward(test.inputs);
    const auto targets = static_cast<double>(test.targets.numel());
    own.right += scores.argmax(-1).eq(test.targets).sum().item<double>();
    own.loss += mean_loss(scores, test.targets, 0).item<double>() * targets;
    own.targets += targets;
    first += count;
  }
  network.train();
  Sums all;
  for (const Sums& sums : apps::gather_values(transport, settings.timeout, own)) {
    all.loss += sums.loss;
    all.right += sums.right;
    all.targets += sums.targets;
  }
  Evaluation result{.accuracy = {}, .loss = all.loss / all.targets, .samples = samples};
  if (!settings.is_language_model) result.accuracy = all.right / all.targets;
  return result;
}

}  // namespace thinreduce::train
