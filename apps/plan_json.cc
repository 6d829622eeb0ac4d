#include "apps/plan_json.h"

namespace thinreduce::apps {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const PlanCandidate& candidate) {
  Json json{{"spec", candidate.spec}, {"tried", candidate.tried}, {"allowed", candidate.allowed}};
  if (!candidate.tried) return json;
  json.update({{"error", candidate.error},
               {"seconds", candidate.seconds},
               {"busy_seconds", candidate.busy},
               {"wire_seconds", candidate.wire},
               {"latency_seconds", candidate.latency},
               {"bytes_sent", candidate.bytes}});
  return json;
}

}  // namespace

Json to_json(const Plan& plan) {
  Json json{{"link", plan.link.to_string()},
            {"bytes_per_second", plan.link.bytes_per_second},
            {"latency_seconds", plan.link.latency.count()},
            {"predicted_seconds", plan.predicted},
            {"fp32_seconds", plan.uncompressed},
            {"measured_seconds", plan.measured},
            {"trials", plan.trials},
            {"changes", plan.changes},
            {"reason", plan.reason},
            {"buckets", Json::array()}};
  for (const PlanBucket& bucket : plan.buckets) {
    Json one{{"id", bucket.id},
             {"elements", bucket.elements},
             {"ready_seconds", bucket.ready},
             {"spec", bucket.spec},
             {"candidates", Json::array()}};
    for (const PlanCandidate& candidate : bucket.candidates) {
      one["candidates"].push_back(to_json(candidate));
    }
    json["buckets"].push_back(std::move(one));
  }
  return json;
}

}  // namespace thinreduce::apps
