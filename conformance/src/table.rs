//! Which cases there are, and with how many ranks.

/// Makes a `#[test]` of every case for one [`Harness`](crate::Harness). To be called in the root
/// of an integration test.
#[macro_export]
macro_rules! suite {
    ($harness:ident) => {
        $crate::tests! { $harness;
            communicators {
                world(1) as world_of_1, world(2) as world_of_2, world(5) as world_of_5,
                split_by_parity(5), split_by_parity(2) as split_by_parity_of_2,
                split_reversed(5), split_with_equal_keys(4), split_with_extreme_keys(3),
                split_without_color(5), split_without_any_color(3), split_of_split(5),
                split_alone(3), split_by_node(4), split_by_node_reversed(3), dup_is_independent(4),
                dup_outlives_its_parent(3), many_dups(3), groups_translate(5),
            }
            collectives {
                barrier(5), barrier_orders(4),
                bcast(1) as bcast_of_1, bcast(4), bcast(5) as bcast_of_5,
                gather(1) as gather_of_1, gather(4), gather(5) as gather_of_5, gatherv(5),
                allgather(1) as allgather_of_1, allgather(4), allgather(5) as allgather_of_5,
                allgatherv(5), allgatherv_of_nothing(3), alltoall(1) as alltoall_of_1, alltoall(4),
                alltoall(5) as alltoall_of_5, alltoallv(5), structs(3), run_ahead_is_bounded(4),
                gathers_in_a_row(4), mixed_in_a_row(5),
                scatter(1) as scatter_of_1, scatter(4), scatter(5) as scatter_of_5, scatterv(5),
                bcast_value(1) as bcast_value_of_1, bcast_value(4),
            }
            lanes {
                from_one(2) as from_one_of_2, from_one(5), to_one(2) as to_one_of_2, to_one(5),
                from_all(2) as from_all_of_2, from_all(5), combined(2) as combined_of_2,
                combined(3) as combined_of_3, combined(5), summed(4), summed(9) as summed_of_9,
                of_odd_sizes(4), in_several_communicators(4), in_other_orders(6), and_gone(4),
            }
            in_place {
                allgather(1) as allgather_of_1, allgather(4), alltoall(1) as alltoall_of_1,
                alltoall(4), alltoall(5) as alltoall_of_5, reduce(5), allreduce(4), scan(5),
                exscan(4), exscan(1) as exscan_of_1,
            }
            timed_barrier {
                in_a_row(5), orders(4), goes_on(3), goes_on(5) as goes_on_of_5, given_up(3),
                alone(1),
            }
            cartesian {
                neighbours(4), neighbours(6) as neighbours_of_6, neighbours(5) as neighbours_of_5,
                places(6), refused(2),
            }
            reductions {
                reduce(1) as reduce_of_1, reduce(4), reduce(5) as reduce_of_5, allreduce(5),
                reduce_scatter(1) as reduce_scatter_of_1, reduce_scatter(4),
                reduce_scatter_with_zeros(5), exscan(1) as exscan_of_1, exscan(4),
                exscan(5) as exscan_of_5, scan(1) as scan_of_1, scan(4),
                scan(5) as scan_of_5, every_op(3), floats(4), keep_rank_order(5),
                structs(4), large(3),
            }
            windows {
                sizes_differ(4), all_empty(3), units_differ(5), over_split(5), over_reversed(4),
                over_interleaved(6), over_interleaved(3) as over_interleaved_of_3,
                left_late(3), over_one_rank(3), outlives_its_communicator(4),
                several_epochs_at_once(3), created_and_freed(2), aligned(2), zeroed(2),
                free_waits(3), flavors_differ(3), attributes(4), dropped_and_not_freed(3),
                two_in_one_fence(3), dropped_memory_is_not_used_again(3),
                small_and_large_by_turns(3),
            }
            info {
                defaults(2), accepted(2), budgets(2), unknown_is_ignored(2),
                malformed_is_refused(2), changed(2), ranks_disagree(3), untrue(3), no_locks(3),
                orders(2), names(2), described(3), explained(2), attributes(2),
            }
            shared {
                contiguous(4), not_contiguous(4), null_query(4), direct_access(4),
                mixed_with_operations(4), atomics_agree(4), other_windows_can_be_asked(3),
                units(3), views_refuse(2), polled(3), given_back(3), crossed(3),
                given_back_while_others_go_on(4), atomics_on_parts_of_odd_sizes(3), waited_for(3),
                waited_for_by_several(4),
            }
            values {
                by_operations(3), elements(2), of_several(2), timed(2), tested(3), served(2),
                refused(2),
            }
            created {
                over_vectors(3), over_parts_of_boxes(4), over_raw_parts(3),
                over_raw_parts_at_odd_addresses(2), much_raw_memory(2), mixed(4),
                overlapping_windows(2), over_a_shared_segment(3), queries(2), refusals(3),
                while_the_owner_computes(2), nothing_nowhere(3),
            }
            detached {
                come_and_gone(3), beside_others(2), gets_behind_stale_ones(2),
                atomics_behind_stale_ones(2),
            }
            dynamic {
                every_operation(3), layouts(2), layouts_of_addresses(2),
                layouts_beside_plain_calls(3), attached_late(2), stale_addresses(2),
                ends_of_regions(2), refusals(1), many_regions(2), too_many(1), raw_memory(2),
                cycles(3), while_the_owner_computes(2), owner_takes_part(3), lengths(1),
                failures_wait_for_a_flush(2),
            }
            paths {
                forced_and_counted(2), by_default(3), refused(2), to_attached_memory(2),
                to_attached_memory_by_device(2),
            }
            put_get {
                put_of_any_size(2), get_of_any_size(2), self_target(1), null_target(2),
                zero_count(2), conflicting_puts(4), put_against_get(3), many_outstanding(4),
                sixteen_mebibytes(2),
                all_to_all(5), elements(3), flush_orders(2), one_mebibyte(2),
            }
            layouts {
                put_each_to_each(2), get_each_to_each(2), put_each_to_each(1) as put_to_itself,
                transposes(2), many_blocks(2), fields_of_structs(2), units(4), in_scopes(3),
                large_scopes(2),
                null_and_nothing(2), out_of_range(2), mismatches(2), other_target_of_a_lock(2),
                paths(2),
            }
            layouts_accumulate {
                accumulate_each_to_each(2), get_each_to_each(2), fields_of_structs(2),
                order_of_i64(2), order_of_f64(2), order_of_u8(2), order_of_pairs(2),
                sums_are_exact(4), tickets(4), stripe_borders(2), columns(3), large(2),
                captured(3), scopes(3),
                in_every_epoch(3), paths(2),
            }
            layouts_requests {
                requests(2), in_other_epochs(2), large_scopes_and_requests(2),
            }
            layouts_mixed {
                put_and_get(2), mixtures_of_u32(2), mixtures_of_f64(2), fields_and_no_op(2),
                mismatches(2), refused(2), put_and_get(1) as to_itself,
            }
            layouts_errors {
                null_and_nothing(2), not_basic(2), misaligned(2), refused(2),
                other_target_of_a_lock(2), huge_counts(2),
            }
            atomics {
                every_op_u32(2), every_op_i32(2), every_op_u64(2), every_op_i64(2),
                compare_and_swap(3), counter(4), one_winner(4), mixed(4), linked_list(4),
                replace_and_no_op(3), halves_of_a_word(4), program_order(2), in_every_epoch(3),
            }
            accumulate {
                small_integers(2), large_integers(2), floats(2), not_a_number(2), bools(2),
                complex_numbers(2), pairs(2), more_pairs(2), stripe_borders(2), one_mebibyte(2),
                compare_and_swap(3), null_and_empty(2), errors(3), origin_is_captured(3),
                scopes_requests_and_views(3), in_every_epoch(3),
            }
            accumulate_together {
                sums_are_exact(4), a_crowded_page(4), extremes_and_bits(3), mixed_calls(4),
                integers_by_lock(3), others_come(2), others_come(4) as others_come_to_4,
                tickets(4), across_a_border_of_stripes(4), pairs_are_never_torn(4),
                extremes_are_located(3), test_and_set(4), owner_takes_part(4), order_of_i64(2),
                order_of_f64(2), order_of_u8(3), order_of_pairs(2),
            }
            fence {
                cycles(4), cycles(1) as cycles_of_1, asserts(3), local_stores(3),
                gets(4), third_rank_sees(3), mode_switches(3), dropped_guard(3), empty_epochs(5),
                atomics(3), next_and_end(4),
            }
            lock {
                exclusive_excludes(4), exclusive_excludes(8) as exclusive_excludes_of_8,
                readers_coexist(4), readers_against_writers(4), several_targets(3),
                several_targets_exclusively(3), asked_for(4), queued(4), several_windows(4),
                unchecked_below_a_lock(4), own_rank(4),
                without_operations(3), no_check(3),
                tried(3), timed(3), timed_in_line(4), requested(4), requested_while_held(3),
                null(2), dropped_guard(3), unlock_completes(3), passive_target(3), every_target(4),
                forgotten_guard(3),
            }
            lock_all {
                counter(4), repeated(3), unlock_completes(4), no_check(3), excludes_writers(4),
                first_uses_against_writers(4), lasts_as_long_as_it_likes(3), shared_with_locks(4),
                one_target_after_another(4), after_bursts_of_writers(4),
            }
            pscw {
                ring(2) as ring_of_2, ring(5), all_to_all(4), changing_groups(4),
                changing_groups(7) as changing_groups_of_7, an_empty_group_and_oneself(3),
                an_empty_group_and_oneself(1) as an_empty_group_and_oneself_of_1,
                stars(4), orders(3), tested(3),
                target_waits_elsewhere(3), asserts(3), no_check_too_early(2), operations(3),
                mode_switches(3), two_windows(3), named_twice(3), dropped_start(3),
                dropped_exposure(3), panic_in_start(2), not_in_group(3), refused(2),
            }
            progress {
                shared(3), exclusive(3), no_check(2), lock_all(3), start(3), requests(3),
                metadata(3), alternating(4), explained(2), one_rank_needs_none(2),
            }
            transitions {
                epochs(3), forgotten(3), together(3),
            }
            flush {
                third_rank_sees(3), all_targets(4), local(2), of_nothing(2), of_null(2),
                sync_completes_nothing(2),
                alternating(2), in_a_lock(2), neither_misses_the_other(2),
            }
            ops {
                gets_overlap(3), puts_and_gets(3), buffers_come_back(2), error_inside(2),
                panic_inside(2), in_fence(3), in_lock(3), many(3), null(1), result(1),
            }
            requests {
                put(2), get(2), test(2), wait_after_unlock(3), wait_in_another_epoch(2),
                dropped(2), forgotten(2), null(1), boxed(2), many(2), refused(2), in_a_lock(2),
                empty(2), flushed(2), arrays_and_values(2), all_of_them(3), any_of_them(3),
                polled(2),
            }
            tries {
                put_and_get(3), put_and_get(1) as put_and_get_alone, requests(3), accumulates(3),
                layouts(2), nothing_but_tries(3), whole_or_nothing(2), before_the_post(2),
                before_the_grant(2), across_a_seal(3),
            }
            peers {
                in_every_epoch(3), of_locks(3), others(3),
            }
            batches {
                additions(3), additions(1) as additions_alone, additions_of_f64(3), puts(3),
                refused(3), in_regions(3), kept_guards(3), dropped_guards(2),
                last_owners(2),
            }
            engine {
                puts_to_one(4), gets_from_one(4), both_ways(2), both_ways(4) as both_ways_of_4,
                mixed_sizes(3), self_target(1), self_target(2) as self_target_of_2, many_gets(3),
                accumulates_beside_puts(3),
            }
            seal {
                slices(3), waits_for_operations(3), empty(2), wrong_element(2), again_and_again(2),
                forgotten_lock(3), forgotten_lock_all(3), forgotten_fence(3), free_is_refused(3),
            }
            errors_range {
                past_the_end(2), overflow(2), empty_part(2), units(2), no_such_rank(3),
                misaligned(2), in_scopes_and_requests(2), views(2),
            }
            errors_epoch {
                double_lock(2), lock_in_lock_all(2), lock_in_fence(2), lock_all_twice(2),
                lock_all_in_lock(2), lock_all_in_fence(2), fence_in_lock(2), fence_in_lock_all(2),
                wrong_asserts(2), end_with_another_guard(2), other_target_of_a_lock(3),
            }
            errors_window {
                size_overflow(3), size_overflow_of_one(3), unit(3), shortage(3),
                shortage_of_one(3), nothing_stays(2), size_of_a_dynamic_one(2),
                after_a_window(3),
            }
            errors_collective {
                no_such_root(3), lengths_differ(2), lengths_differ_in_place(2), counts(3),
                counts_of_the_root(4), float_bits(3),
            }
            threads {
                atomics(2), puts_and_flushes(2), locks_of_different_targets(3),
                more_waiters_than_nodes(6), windows_of_their_own(3), communicators_of_their_own(3),
                first_uses_race(3), starts(3), requests_cross_threads(2), large_payloads(2),
                waiting_for_values(2), fences(3), a_lock_that_waits_keeps_no_credit(3),
                timed_barriers(2), a_lock_that_is_given_away(4),
                queued_by_several(4),
            }
        }

        mod differing {
            use super::*;

            $crate::differing! { $harness, differing;
                where_some_have_none(4), one_is_small(2) as one_is_small_of_2, one_is_small(4),
                one_is_almost_large(4), one_is_large(2) as one_is_large_of_2,
                one_is_large(3) as one_is_large_of_3, one_is_large(4),
                all_are_large(2) as all_are_large_of_2, all_are_large(4),
            }
        }

        mod failure {
            use super::*;

            $crate::failing! { $harness;
                in_a_barrier(4), in_a_timed_barrier(4), in_a_lock(3), in_a_fence(4),
                in_a_collective(5), in_a_large_collective(5), holding_a_lock(3),
                in_an_allocation(3), in_a_later_allocation(3), in_a_free(3),
                in_operations(3), in_large_operations(3),
                in_a_start(3), in_an_exposure(4),
                waiting_for_a_value(3),
            }

            #[test]
            fn pair_left() {
                $crate::failure::run_leaving_a_pair::<$harness>("failure::pair_left");
            }

            #[test]
            fn others_work_on() {
                $crate::failure::run_working_on::<$harness>("failure::others_work_on");
            }

            #[test]
            fn no_rank_is_left() {
                $crate::failure::run_leaving_alone::<$harness>("failure::no_rank_is_left");
            }

            #[test]
            fn root_of_a_tree_left() {
                $crate::failure::run_leaving_a_tree::<$harness>("failure::root_of_a_tree_left");
            }

            #[test]
            fn inside_of_a_tree_left() {
                let name = "failure::inside_of_a_tree_left";
                $crate::failure::run_leaving_inside_a_tree::<$harness>(name);
            }

            #[test]
            fn peer_left() {
                $crate::failure::run_leaving::<$harness>("failure::peer_left");
            }
        }
    };
}

/// A module for each topic, a test for each entry.
#[doc(hidden)]
#[macro_export]
macro_rules! tests {
    ($harness:ident; $($topic:ident {
        $($case:ident($ranks:literal) $(as $name:ident)?),* $(,)?
    })*) => {
        $(mod $topic {
            use super::*;
            $($crate::test! { $harness, $topic, $case, $ranks $(, $name)? })*
        })*

        #[test]
        fn exceptions_name_tests() {
            let tests = [$($($crate::test_name!($topic, $case $(, $name)?)),*),*];
            $crate::check_exceptions::<$harness>(&tests);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! test {
    ($harness:ident, $topic:ident, $case:ident, $ranks:literal) => {
        $crate::test! { $harness, $topic, $case, $ranks, $case }
    };
    ($harness:ident, $topic:ident, $case:ident, $ranks:literal, $name:ident) => {
        #[test]
        fn $name() {
            let name = $crate::test_name!($topic, $name);
            $crate::run_case::<$harness>(name, $ranks, $crate::$topic::$case);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! test_name {
    ($topic:ident, $name:ident) => {
        concat!(stringify!($topic), "::", stringify!($name))
    };
    ($topic:ident, $case:ident, $name:ident) => {
        concat!(stringify!($topic), "::", stringify!($name))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! failing {
    ($harness:ident; $($case:ident($ranks:literal)),* $(,)?) => {
        $(#[test]
        fn $case() {
            let name = $crate::test_name!(failure, $case);
            $crate::failure::run::<$harness>(name, $ranks, $crate::failure::$case);
        })*
    };
}

/// Cases of [`lanes`](crate::lanes) in which ranks call differently.
#[doc(hidden)]
#[macro_export]
macro_rules! differing {
    ($harness:ident, $topic:ident; $($case:ident($ranks:literal) $(as $name:ident)?),* $(,)?) => {
        $($crate::differing_test! { $harness, $topic, $case, $ranks $(, $name)? })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! differing_test {
    ($harness:ident, $topic:ident, $case:ident, $ranks:literal) => {
        $crate::differing_test! { $harness, $topic, $case, $ranks, $case }
    };
    ($harness:ident, $topic:ident, $case:ident, $ranks:literal, $name:ident) => {
        #[test]
        fn $name() {
            let name = $crate::test_name!($topic, $name);
            $crate::lanes::run_differing::<$harness>(name, $ranks, $crate::lanes::$case);
        }
    };
}
