#include "thinreduce/plan/recommend.h"

#include <fmt/format.h>

#include "thinreduce/plan/cost.h"

namespace thinreduce {

void recommend_for(Plan& plan, double compute) {
  plan.compute = compute;
  plan.local_steps = recommend_local_steps(compute, plan.exposed, plan.predicted);
  plan.advice.clear();
  if (plan.local_steps <= 1) return;
  plan.advice = fmt::format(
      "a step computes for {:.3g} ms and then waits for {:.3g} ms: with an exchange every {} local "
      "steps the machine would compute for {:.0f} % of the time",
      1e3 * compute, 1e3 * plan.exposed, plan.local_steps, 100 * kBusyMachine);
}

}  // namespace thinreduce
