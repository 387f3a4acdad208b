"""Waits in a queue that has had the same arrivals for long, in closed form.

In Kendall's notation, arrivals / service / servers, with M for exponential, D for constant and G for any: M/M/1, M/D/1,
M/G/1, M/M/c and G/G/c are one formula.

Sources: A. O. Allen, "Probability, Statistics, and Queueing Theory", ch. 5 (G/G/c, after Allen and Cunneen);
L. Kleinrock, "Queueing Systems", vol. 1, 3.5 (M/M/c) and 5.6 (Pollaczek and Khinchine's M/G/1).
"""

import math
from dataclasses import dataclass

from policies.capacity.bisection import least


def erlang_c(servers: int, offered_load: float) -> float:
    """Probability that a job has to wait in an M/M/c queue.

    Args:
        servers: How many, 1 or more.
        offered_load: Arrival rate times mean service time, in servers.
    """
    if offered_load >= servers:
        return 1.0
    inverse_b = 1.0  # of Erlang's B, which is the same for 0 servers: all jobs are lost
    for number in range(1, servers + 1):
        inverse_b = 1.0 + inverse_b * number / offered_load if offered_load else math.inf
    rho = offered_load / servers
    return 1.0 / (inverse_b * (1.0 - rho) + rho) if offered_load else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StationaryQueue:
    """One queue before servers that are alike, in the long run. With more work than they can do all times are infinite.

        load = rate * service
        mean wait = C(servers, load) * service / (servers - load) * (scv_arrivals + scv_service) / 2

    That is exact for Poisson arrivals at one server (M/G/1, so also M/D/1) and with exponential service (M/M/c).
    Elsewhere it is for busy queues: at eight servers of which 70% are busy, arrivals with a squared coefficient of 16
    wait 1.8 to 2.7 times as long as it says, and where few wait, it says little. Those who wait are taken to wait
    exponentially long, which is exact for M/M/c.

    Args:
        rate_per_s: Arrivals, 0 or more.
        service_s: Mean service time, above 0.
        servers: How many, 0 or more.
        scv_arrivals: Squared coefficient of variation of the gaps between arrivals: 1 for Poisson arrivals.
        scv_service: The same of service times: 1 for exponential, 0 for constant ones.
    """

    rate_per_s: float
    service_s: float
    servers: int = 1
    scv_arrivals: float = 1.0
    scv_service: float = 1.0

    @property
    def load(self) -> float:
        """Servers that are busy in the mean: Little's law for the servers alone."""
        return self.rate_per_s * self.service_s

    @property
    def utilisation(self) -> float:
        """Part of the servers that is busy; 1 and more: the queue grows without end."""
        return self.load / self.servers if self.servers else math.inf if self.load else 0.0

    @property
    def is_stable(self) -> bool:
        """Whether there is less work than the servers can do."""
        return self.load < self.servers or not self.load

    @property
    def wait_probability(self) -> float:
        """Of a job that has to wait."""
        if not self.load:
            return 0.0
        return erlang_c(self.servers, self.load) if self.is_stable else 1.0

    @property
    def mean_wait_s(self) -> float:
        """Of all jobs, those that need not wait included."""
        if not self.load:
            return 0.0
        if not self.is_stable:
            return math.inf
        exponential_s = self.wait_probability * self.service_s / (self.servers - self.load)
        return exponential_s * (self.scv_arrivals + self.scv_service) / 2

    @property
    def mean_response_s(self) -> float:
        """Wait and service."""
        return self.mean_wait_s + self.service_s

    @property
    def mean_in_system(self) -> float:
        """Jobs that wait or are served: Little's law."""
        return self.rate_per_s * self.mean_response_s

    def wait_quantile_s(self, quantile: float) -> float:
        """The wait that so large a part of all jobs does not exceed."""
        if not self.mean_wait_s or 1.0 - quantile >= self.wait_probability:
            return 0.0
        return self.mean_wait_s / self.wait_probability * math.log(self.wait_probability / (1.0 - quantile))

    def response_quantile_s(self, quantile: float) -> float:
        """Wait and service, which is taken to be exponential as well: exact for M/M/c."""
        if not self.is_stable:
            return math.inf
        service_s, waits, mean_wait_s = self.service_s, self.wait_probability, self.mean_wait_s
        alone_s = service_s * -math.log(1.0 - quantile)
        if not mean_wait_s:
            return alone_s
        wait_s = mean_wait_s / waits  # of those who wait
        if math.isclose(wait_s, service_s, rel_tol=1e-6):
            wait_s = service_s * (1.0 + 1e-6)

        def is_rarer(limit_s: float) -> bool:
            served, waited = math.exp(-limit_s / service_s), math.exp(-limit_s / wait_s)
            both = (wait_s * waited - service_s * served) / (wait_s - service_s)
            return (1.0 - waits) * served + waits * both <= 1.0 - quantile

        return least(is_rarer, alone_s + wait_s * -math.log((1.0 - quantile) / 2) + service_s)
