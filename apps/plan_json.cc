#include "apps/plan_json.h"

#include <vector>

#include "thinreduce/plan/plan_fields.h"

namespace thinreduce::apps {
namespace {

using Json = nlohmann::ordered_json;

template <typename Value>
Json shown(const Value& value) {
  return value;
}

template <typename Part>
Json shown(const std::vector<Part>& parts);

template <typename Record>
Json object(const Record& record) {
  Json json;
  for_fields(record, [&](const char* name, const auto& value) { json[name] = shown(value); });
  return json;
}

template <typename Part>
Json shown(const std::vector<Part>& parts) {
  Json list = Json::array();
  for (const Part& part : parts) list.push_back(object(part));
  return list;
}

}  // namespace

Json to_json(const Plan& plan) {
  return object(plan);
}

}  // namespace thinreduce::apps
