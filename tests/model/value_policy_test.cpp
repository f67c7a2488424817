#include <turboquant/model/value_policy.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

constexpr LayerShape head{1, 128, 128};
constexpr double bfloat16_bytes = 2 * 2 * 128;

double ratio(const ValuePolicy& policy) {
  return bfloat16_bytes / double(layer_bytes_per_token(policy.codec(), head));
}

}  // namespace

TEST_CASE("classes choose 2, 3 and 4 value bits: 7.5, 5.1 and 3.9 times smaller than bfloat16") {
  CHECK(ValuePolicy{ServiceClass::throughput}.value_bits() == 2);
  CHECK(ValuePolicy{ServiceClass::balanced}.value_bits() == 3);
  CHECK(ValuePolicy{ServiceClass::quality}.value_bits() == 4);
  CHECK(ratio({ServiceClass::throughput}) == 512.0 / 68);
  CHECK(ratio({ServiceClass::balanced}) == 512.0 / 100);
  CHECK(ratio({ServiceClass::quality}) == 512.0 / 132);
  // The same with keys of their own bits, and with values in one group.
  CHECK(ratio({ServiceClass::throughput, 3}) == 512.0 / 84);
  CHECK(ratio({ServiceClass::quality, 3}) == 512.0 / 116);
  CHECK(ratio({ServiceClass::throughput, 0, ValueCodec::grouped}) == 512.0 / 70);
  CHECK(ratio({ServiceClass::balanced, 0, ValueCodec::grouped}) == 512.0 / 102);
  CHECK(ratio({ServiceClass::quality, 0, ValueCodec::grouped}) == 512.0 / 134);
}

TEST_CASE("a policy's codec is one that presets and plans know") {
  CHECK(cache_codec(ValuePolicy{ServiceClass::throughput}.codec()).name == "tq_k2v2");
  CHECK(cache_codec(ValuePolicy{ServiceClass::balanced}.codec()).name == "tq_k3v3");
  CHECK(cache_codec(ValuePolicy{ServiceClass::quality, 3, ValueCodec::grouped}.codec()).name ==
        "tq_k3v4");
}

TEST_CASE("names") {
  for (const ServiceClass service :
       {ServiceClass::throughput, ServiceClass::balanced, ServiceClass::quality}) {
    CHECK(parse_service_class(to_string(service)) == service);
  }
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { (void)parse_service_class("fast"); }),
                 "\"fast\", expected throughput, balanced or quality"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [] { (void)ValuePolicy{static_cast<ServiceClass>(3)}.codec(); }),
                 "value is 3"));
  CHECK(mentions(error_of(ErrorCode::unsupported,
                          [] {
                            (void)ValuePolicy{ServiceClass::balanced, 5}.codec();
                          }),
                 "ValuePolicy: key_bits is 5, expected 2, 3 or 4"));
}

TEST_CASE("between the classes the ratio moves by one bit of one layer at a time") {
  constexpr std::int64_t layers = 32;
  const std::vector<LayerShape> shapes(layers, head);
  std::int64_t before = 0;
  for (int step = 0; step <= 4 * layers; ++step) {
    const BitPlan plan = blended_plan(layers, step / (4.0 * layers));
    const std::int64_t bytes = bytes_per_token(plan, shapes);
    if (step > 0) {
      CHECK(bytes - before == 16);  // one bit of 128 numbers
    }
    before = bytes;
    // Earlier layers never have less than later ones.
    for (std::size_t i = 1; i < plan.layers.size(); ++i) {
      CHECK(plan.layers[i - 1]->key_bits >= plan.layers[i]->key_bits);
      CHECK(plan.layers[i - 1]->value_bits >= plan.layers[i]->value_bits);
    }
  }
  CHECK(blended_plan(layers, 0) ==
        uniform_plan(layers, ValuePolicy{ServiceClass::throughput}.codec()));
  CHECK(blended_plan(layers, 0.5) ==
        uniform_plan(layers, ValuePolicy{ServiceClass::balanced}.codec()));
  CHECK(blended_plan(layers, 1) ==
        uniform_plan(layers, ValuePolicy{ServiceClass::quality}.codec()));
  CHECK(blended_plan(layers, 1, ValueCodec::grouped) ==
        uniform_plan(layers, ValuePolicy{ServiceClass::quality, 0, ValueCodec::grouped}.codec()));
}

TEST_CASE("blended plans of few layers, and what is refused") {
  CHECK(blended_plan(0, 0.3).layers.empty());
  CHECK(blended_plan(1, 0.25).layers.front()->key_bits == 3);
  CHECK(blended_plan(1, 0.25).layers.front()->value_bits == 2);
  for (const double wrong : {-0.001, 1.001, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)blended_plan(4, wrong); }),
                   "position is"));
  }
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { (void)blended_plan(10'001, 0.5); }),
                 "num_layers is 10001"));
}
