-- One row per leaf node as a low-activity window, over the iterations that are not warm-up; empty without samples.
--
-- path | | the node
-- rank | | position among eligible windows, from 1; null if not eligible
-- tier | | 0 below an activity of 0.5, 1 below 0.8; null if not eligible
-- refused | | why it is not eligible, empty if it is
-- total_ns | ns | duration of its invocations in one iteration, D_v
-- mean_ns | ns | mean duration of one invocation
-- calls | | invocations in one iteration
-- activity | fraction | time-weighted mean during it, a_v; null where samples cover less than half of its time
-- coverage | fraction | part of its time that samples cover
-- idle_ns | ns | score S(v) = D_v * (1 - a_v): time in one iteration that the device leaves unused
-- source | | source of the activity
-- resolved | | whether an invocation lasts at least resolution_ns
-- estimate | | whether the activity is derived, or mixed with that of neighbours because it is not resolved
-- resolution_ns | ns | shortest time that one value of the source describes
CREATE TABLE windows AS
SELECT path, rank, tier, refused, total_ns, mean_ns, calls, activity, coverage, round(idle_ns)::BIGINT AS idle_ns,
    getvariable('source') AS source, resolved, getvariable('estimate') OR NOT resolved AS estimate,
    getvariable('resolution_ns') AS resolution_ns
FROM node_window;
