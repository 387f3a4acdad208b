"""Parameters of policies that are out of range are refused by name, however a configuration got them."""

from typing import Any

import yaml

from tests.policies.built import refusal_of
from tests.tables import for_each

REFUSED: dict[str, list[dict[str, Any]]] = yaml.safe_load("""
admission.bounded_queue: [{unit: tokens}, {soft_factor: -1.0}, {soft_factor: 4.0, named: hard_factor},
  {hard_factor: .inf}, {max_wait_s: 0.0}, {max_wait_s: soon}, {least_s: 0.0}, {least_s: true}]
admission.codel: [{target_fraction: 0.0}, {target_fraction: 1.5}, {interval_services: 0.0}, {drop_factor: 0.5}]
admission.concurrency_limit: [{algorithm: bbr}, {signal: latency}, {unit: tokens}, {least: 0.0}, {initial: 3.0},
  {most: 10.0}, {tolerance: 0.5}, {smoothing: 0.0}, {smoothing: .nan}, {ceiling: 0.0}, {backoff: 1.0}, {window_s: 0.0},
  {min_samples: 0}]
admission.credit: [{overcommit: 0.0}]
admission.deadline: [{order: lifo}, {safety: 0.0}, {probe_fraction: 1.5}, {kv_ceiling: -1.0}]
admission.token_bucket: [{unit: count}, {reserve: all}, {rate_per_s: 0.0}, {burst_s: -1.0}, {max_tenants: -1},
  {tenants: {a: {rate_per_s: 0.0}}, named: tenants.a.rate_per_s}, {tenants: {a: {weight: 1.0}}, named: tenants.a},
  {tenants: {a: 3.0}, named: tenants.a}, {tenants: [a]}]
balancing.card: [{medium_fraction: 1.5}, {short_fraction: 0.0}]
balancing.least_cost: [{match_weight: .nan}]
balancing.peak_ewma: [{decay_s: 0.0}, {decay_s: .inf}, {base_tokens: 0}, {failure_factor: 0.5}, {compare_at_most: -1}]
balancing.prefix_affinity: [{bound_factor: 0.9}, {slack_tokens: -1}]
balancing.scored: [{weights: {prefixes: 1.0}}, {weights: {load: -1.0}, named: weights.load}, {weights: {load: 0.0}}]
balancing.session_affinity: [{points_per_replica: 0}, {bound_factor: .nan}]
degradation.all_of: [{policies: []}, {policies: [{params: {}}], named: policies.0},
  {policies: [{name: 7}], named: policies.0}, {policies: [output_time_limit, no_such], named: policies.1},
  {policies: [{name: output_time_limit, params: {limit_s: {vip: 1.0}}}], named: policies.0.params.limit_s}]
degradation.cap_output: [{cap_tokens: {}}, {cap_tokens: 64}, {cap_tokens: {vip: 64}},
  {cap_tokens: {standard: 0}, named: cap_tokens.standard}, {cap_tokens: {standard: "64"}, named: cap_tokens.standard},
  {from_pressure: -0.1}, {full_pressure: 0.4, from_pressure: 0.4}]
degradation.from_cache: [{from_pressure: -1.0}]
degradation.output_time_limit: [{limit_s: {sheddable: 0.0}, named: limit_s.sheddable},
  {limit_s: {sheddable: .inf}, named: limit_s.sheddable}, {full_pressure: .nan}]
degradation.to_fallback: [{lane: nowhere}, {classes: [vip], lane: small}, {classes: standard, lane: small},
  {from_pressure: .nan, lane: small}]
ejection.outlier: [{signs: []}, {signs: failures}, {signs: [failures, failures]}, {signs: [looks]}, {max_failures: 0},
  {factor: 1.0}, {num_slow: 0}, {allowance_s: -1}, {window_s: 0}, {base_s: 0}, {max_s: 20, base_s: 30},
  {max_fraction: 1.1}, {max_fraction: .nan}]
hedging.dual_path: [{threshold_s: .nan}]
hedging.fixed_delay: [{wait_s: -1}, {budget_fraction: 1.5}, {max_busy_fraction: -0.1}]
hedging.percentile: [{quantile: 1.0}, {max_delay_s: 1.0, min_delay_s: 2.0}, {window_s: 0}]
hedging.slowdown: [{max_slowdown: 0.5}, {min_samples: 0}]
hedging.tied: [{min_ahead_tokens: -1}]
preemption.newest_sheddable: [{floor_fraction: 0.0}, {floor_fraction: 1.1}, {most_preemptions: 0}]
queueing.drr: [{quantum_s: 0.0}, {weights: {a: 0.0}, named: weights.a}, {weights: {a: -1.0}, named: weights.a},
  {weights: {a: .inf}, named: weights.a}, {weights: {a: 1.0e-9}, named: weights.a},
  {weights: {a: much}, named: weights.a}]
queueing.priority: [{aging_tau_s: 0.0}, {aging_tau_s: -1.0}, {aging_tau_s: .nan}]
queueing.sjf_aged: [{factor: -1.0}, {factor: .inf}, {token_s: 0.0}]
queueing.vtc: [{prompt_weight: -1.0}, {output_weight: .inf}, {half_life_s: 0.0}, {max_tenants: 0},
  {weights: {a: 0.0}, named: weights.a}, {weights: {a: 1.0e-9}, named: weights.a},
  {weights: {a: much}, named: weights.a}]
retrying.backoff: [{max_retries: 0}, {first_s: 0.0}, {factor: 0.9}, {longest_s: 0.1}, {jitter_fraction: 1.1},
  {budget_fraction: -0.1}, {floor_per_s: -1.0}]
shedding.shared_fraction: [{proportional_gain: 0.2}, {integral_gain_per_s: 0.02}, {target_s: 0.0},
  {period_s: 0.5, named: proportional_gain}, {most_load: 9.0, named: proportional_gain}]
""")
"""By policy; the field that is named is the first one, unless it says otherwise."""
ROWS = [(*policy.split("."), params) for policy, refused in REFUSED.items() for params in refused]


@for_each(("kind", "name", "params"), ROWS)
def test_a_parameter_out_of_range_is_refused_by_name(kind: str, name: str, params: dict[str, Any]) -> None:
    error = refusal_of(kind, name, {field: value for field, value in params.items() if field != "named"})
    assert error.field.endswith(f"params.{params.get('named', next(iter(params)))}")
    assert error.field.startswith(f"policies.{kind}.")
