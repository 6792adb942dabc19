use super::*;
use proptest::prelude::*;

fn server(here: Range<u32>, size: u32) -> Server {
    let mapping = mapping([size]);
    Server::new(Offer { space: "kvs".into(), size, mapping, firsts: vec![0, 2] }, here)
}

fn outputs(server: &mut Server) -> Vec<Output> {
    std::iter::from_fn(|| server.poll_output()).collect()
}

/// What comes of that line.
fn say(server: &mut Server, rank: u32, line: &str) -> Vec<Output> {
    server.handle_line(rank, Ok(line.as_bytes()));
    outputs(server)
}

fn answered(rank: u32, text: &str) -> Output {
    Output::Answer { rank, bytes: format!("{text}\n").into_bytes() }
}

/// The text that is the only thing that comes of that line.
#[track_caller]
fn request(server: &mut Server, rank: u32, line: &str) -> String {
    match &say(server, rank, line)[..] {
        [Output::Answer { rank: of, bytes }] if *of == rank => {
            String::from_utf8(bytes.clone()).unwrap().trim_end().to_owned()
        }
        other => panic!("{line} gave {other:?}"),
    }
}

fn begun(here: Range<u32>, size: u32) -> Server {
    let mut server = server(here.clone(), size);
    for rank in here {
        let said = say(&mut server, rank, "cmd=init pmi_version=1 pmi_subversion=1");
        let answer = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0";
        assert_eq!(said, [Output::Told(Told::Began { rank }), answered(rank, answer)]);
    }
    server
}

/// The fault that ends the conversation with that rank.
#[track_caller]
fn fault(server: &mut Server, rank: u32, line: &str) -> PmiFault {
    let said = say(server, rank, line);
    match &said[..] {
        [Output::Told(Told::Faulty { rank: of, fault, .. }), Output::HangUp { rank: closed }]
            if *of == rank && *closed == rank =>
        {
            *fault
        }
        other => panic!("{line} gave {other:?}"),
    }
}

#[test]
fn a_rank_requests_what_it_is_told() {
    let mut server = begun(0..3, 3);
    for (line, answer) in [
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"),
        ("cmd=get_appnum", "cmd=appnum appnum=1"),
        ("cmd=get_universe_size", "cmd=universe_size size=3"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs"),
        (
            "cmd=get kvsname=kvs key=PMI_process_mapping",
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,3))",
        ),
        ("cmd=get kvsname=kvs key=a", "cmd=get_result rc=-1 msg=no_such_key value=unknown"),
        ("cmd=get kvsname=x key=a", "cmd=get_result rc=-1 msg=no_such_key value=unknown"),
        ("cmd=put kvsname=x key=a value=b", "cmd=put_result rc=-1 msg=no_such_space_of_keys"),
        (
            "cmd=publish_name service=s port=p",
            "cmd=publish_result rc=-1 msg=rma-run_keeps_no_names_of_services",
        ),
    ] {
        assert_eq!(request(&mut server, 2, line), answer);
    }
    assert_eq!(request(&mut server, 1, "cmd=get_appnum"), "cmd=appnum appnum=0");
}

#[test]
fn what_was_put_is_found_behind_the_barrier() {
    let mut server = begun(2..4, 4);
    let put = "cmd=put kvsname=kvs key=a value=(x=1,y)";
    assert_eq!(request(&mut server, 2, put), "cmd=put_result rc=0 msg=success");
    assert_eq!(say(&mut server, 2, "cmd=barrier_in"), []);
    let pairs = vec![("a".to_owned(), "(x=1,y)".to_owned())];
    let met = say(&mut server, 3, "cmd=barrier_in");
    assert_eq!(met, [Output::Told(Told::Met { pairs: pairs.clone() })]);
    let other = ("b".to_owned(), "2".to_owned());
    server.handle_met([pairs, vec![other]].concat());
    let out = "cmd=barrier_out";
    assert_eq!(outputs(&mut server), [answered(2, out), answered(3, out)]);
    for (key, value) in [("a", "(x=1,y)"), ("b", "2")] {
        let found = request(&mut server, 3, &format!("cmd=get kvsname=kvs key={key}"));
        assert_eq!(found, format!("cmd=get_result rc=0 msg=success value={value}"));
    }
    // Nothing is put twice.
    say(&mut server, 3, "cmd=barrier_in");
    let met = say(&mut server, 2, "cmd=barrier_in");
    assert_eq!(met, [Output::Told(Told::Met { pairs: Vec::new() })]);
}

#[test]
fn ranks_that_wait_for_one_that_is_gone_are_told_so() {
    let missed = |rank, of| [Output::Told(Told::Missed { rank, of }), Output::HangUp { rank }];
    let mut server = begun(0..3, 3);
    say(&mut server, 0, "cmd=barrier_in");
    server.handle_closed(2);
    assert_eq!(outputs(&mut server), [Output::Told(Told::Closed { rank: 2 })]);
    server.handle_gone(2);
    let gone = [Output::HangUp { rank: 2 }, Output::Told(Told::Broken { rank: 2 })];
    assert_eq!(outputs(&mut server), [&gone[..], &missed(0, 2)].concat());
    assert_eq!(say(&mut server, 1, "cmd=barrier_in"), missed(1, 2));
    server.handle_gone(2);
    server.handle_closed(2);
    assert_eq!(outputs(&mut server), []);
    // One that is elsewhere.
    let mut server = begun(0..2, 3);
    say(&mut server, 1, "cmd=barrier_in");
    server.handle_broken(2);
    assert_eq!(outputs(&mut server), missed(1, 2));
}

#[test]
fn a_rank_that_ends_in_order_leaves_no_other_waiting() {
    let mut server = begun(0..2, 2);
    let ended = say(&mut server, 0, "cmd=finalize");
    let expected = [
        answered(0, "cmd=finalize_ack"),
        Output::Told(Told::Ended { rank: 0 }),
        Output::Told(Told::Broken { rank: 0 }),
    ];
    assert_eq!(ended, expected);
    assert!(matches!(
        say(&mut server, 1, "cmd=barrier_in")[..],
        [Output::Told(Told::Missed { rank: 1, of: 0 }), Output::HangUp { rank: 1 }]
    ));
    let ended = say(&mut begun(1..2, 2), 1, "cmd=finalize");
    assert!(ended.contains(&Output::Told(Told::Ended { rank: 1 })));
}

#[test]
fn an_abort_has_a_status() {
    for (line, expected) in [("cmd=abort exitcode=7", 7), ("cmd=abort", 1)] {
        let aborted = say(&mut begun(0..2, 2), 1, line);
        let status = u32::try_from(expected).unwrap();
        assert_eq!(aborted, [Output::Told(Told::Aborted { rank: 1, status })]);
    }
    let aborted = say(&mut server(0..1, 1), 0, "cmd=abort exitcode=-1");
    let status = (-1i32).cast_unsigned();
    assert_eq!(aborted, [Output::Told(Told::Aborted { rank: 0, status })]);
}

#[test]
fn a_rank_that_does_not_keep_to_the_protocol_is_told_of() {
    use PmiFault as F;
    for (line, expected) in [
        ("GET / HTTP/1.1", F::NoMessage),
        ("", F::NoMessage),
        ("cmd=shutdown", F::UnknownCommand),
        ("cmd=barrier_out", F::UnknownCommand),
        ("cmd=init pmi_version=1", F::Repeated),
        ("cmd=put kvsname=kvs key=a", F::BadField),
        ("cmd=get key=a", F::BadField),
        ("cmd=abort exitcode=x", F::BadField),
    ] {
        assert_eq!(fault(&mut begun(0..2, 2), 1, line), expected, "{line}");
    }
    let with = |key: usize, value: usize| {
        format!("cmd=put kvsname=kvs key={} value={}", "k".repeat(key), "v".repeat(value))
    };
    assert_eq!(fault(&mut begun(0..1, 1), 0, &with(64, 1)), F::BadField);
    assert_eq!(fault(&mut begun(0..1, 1), 0, &with(1, 1024)), F::BadField);
    request(&mut begun(0..1, 1), 0, &with(63, 1023));
    assert_eq!(fault(&mut server(0..1, 1), 0, "cmd=get_maxes"), F::NotBegun);
    assert_eq!(fault(&mut server(0..1, 1), 0, "mcmd=spawn"), F::NotBegun);
    assert_eq!(fault(&mut server(0..1, 1), 0, "cmd=init pmi_version=x"), F::BadField);
    let mut ended = begun(0..1, 1);
    say(&mut ended, 0, "cmd=finalize");
    assert_eq!(fault(&mut ended, 0, "cmd=get_maxes"), F::Repeated);
}

#[test]
fn another_version_is_refused_and_a_rank_may_begin_again() {
    let mut server = server(0..1, 1);
    let two = request(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0");
    assert_eq!(two, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1");
    assert_eq!(say(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").len(), 2);
}

#[test]
fn a_request_for_processes_is_refused_at_its_end() {
    let mut server = begun(0..1, 1);
    for line in ["mcmd=spawn", "nprocs=1", "execname=./a", "cmd=finalize"] {
        assert_eq!(request(&mut server, 0, line), "", "{line}");
    }
    let refused = "cmd=spawn_result rc=-1 msg=rma-run_starts_no_further_processes";
    assert_eq!(request(&mut server, 0, "endcmd"), refused);
    assert_eq!(request(&mut server, 0, "cmd=get_universe_size"), "cmd=universe_size size=1");
}

#[test]
fn a_rank_may_put_so_much() {
    let mut server = begun(0..2, 2);
    let put = format!("cmd=put kvsname=kvs key=a value={}", "x".repeat(1023));
    let many = RANK_BUDGET / (1 + 1023 + PAIR);
    for _ in 0..many {
        request(&mut server, 0, &put);
    }
    assert_eq!(fault(&mut server, 0, &put), PmiFault::TooMuch);
    assert_eq!(server.fresh.len(), many);
    request(&mut server, 1, &put);
    // Within its own budget, it is one too many for the job.
    server.put = JOB_BUDGET;
    assert_eq!(fault(&mut server, 1, &put), PmiFault::TooMuchOfAll);
}

#[test]
fn lines_are_taken_apart_and_bounded() {
    let mut lines = Lines::default();
    lines.push(b"cmd=a\ncmd");
    assert_eq!(lines.next(), Ok(Some(b"cmd=a".to_vec())));
    assert_eq!(lines.next(), Ok(None));
    lines.push(b"=b\n\n");
    assert_eq!(lines.next(), Ok(Some(b"cmd=b".to_vec())));
    assert_eq!(lines.next(), Ok(Some(Vec::new())));
    assert_eq!(lines.next(), Ok(None));
    lines.push(&[b'x'; LINE_MAX]);
    assert_eq!(lines.next(), Ok(None));
    lines.push(b"x");
    assert_eq!(lines.next(), Err(PmiFault::TooLong));
    lines.push(b"\n");
    assert_eq!(lines.next(), Err(PmiFault::TooLong));
}

#[test]
fn nodes_are_told_as_clients_read_them() {
    use crate::pmi::places;
    assert_eq!(mapping([4]), "(vector,(0,1,4))");
    assert_eq!(mapping([2, 2, 1]), "(vector,(0,2,2),(2,1,1))");
    for nodes in [vec![1], vec![3, 3], vec![1, 2, 3], vec![2, 2, 1], vec![1, 4, 4, 1]] {
        let size = nodes.iter().sum();
        let read = places::rows(&places::nodes(&mapping(nodes.clone()), size).unwrap());
        let counts: Vec<u32> = read.unwrap().iter().map(|node| node.len() as u32).collect();
        assert_eq!(counts, nodes);
    }
}

#[test]
fn hosts_meet_when_all_have() {
    let pair = |key: &str| (key.to_owned(), "v".to_owned());
    let mut meeting = Meeting::new(2);
    for _ in 0..2 {
        assert_eq!(meeting.handle_met(1, vec![pair("b")]), Ok(None));
        let all = vec![pair("b"), pair("a")];
        assert_eq!(meeting.handle_met(0, vec![pair("a")]), Ok(Some(all)));
    }
    let large = vec![("k".to_owned(), "v".repeat(JOB_BUDGET))];
    assert_eq!(meeting.handle_met(0, large), Err(PmiFault::TooMuchOfAll));
    assert!(meeting.pairs.is_empty());
}

#[test]
fn what_is_told_travels() {
    let faulty = Told::Faulty { rank: 3, fault: PmiFault::TooMuch, said: "\"x\"".to_owned() };
    for told in [faulty, Told::Met { pairs: vec![("a".into(), "b".into())] }] {
        let frame = crate::wire::encode(&told).unwrap();
        assert_eq!(crate::wire::decode::<Told>(&frame[4..]).unwrap(), told);
    }
}

/// A line that may be one of the protocol.
fn a_line() -> impl Strategy<Value = Vec<u8>> {
    let sensible = prop::sample::select(&[
        "cmd=init pmi_version=1 pmi_subversion=1",
        "cmd=get_maxes",
        "cmd=put kvsname=kvs key=a value=b",
        "cmd=put kvsname=kvs key=a value=b key=c",
        "cmd=get kvsname=kvs key=a",
        "cmd=barrier_in",
        "cmd=finalize",
        "cmd=abort exitcode=3",
        "mcmd=spawn",
        "endcmd",
    ]);
    prop_oneof![
        8 => sensible.prop_map(|line| line.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..80),
    ]
}

proptest! {
    /// Whatever ranks say, and whenever they go: each line is answered once, unless the rank
    /// waits for others or its end; no rank waits for one that is gone, and nothing is put
    /// beyond its budget.
    #[test]
    fn no_rank_waits_in_vain(
        steps in prop::collection::vec((0u32..3, any::<u8>(), a_line()), 0..60)
    ) {
        let mut server = server(0..3, 3);
        // Has been hung up; waits for an answer.
        let (mut closed, mut unanswered) = ([false; 3], [false; 3]);
        let mut over = false;
        for (rank, what, line) in steps {
            let at = rank as usize;
            if what < 10 {
                server.handle_gone(rank);
                closed[at] = true;
            } else if !closed[at] && !unanswered[at] {
                unanswered[at] = true;
                server.handle_line(rank, Ok(&line));
            }
            while let Some(output) = server.poll_output() {
                match output {
                    Output::Answer { rank, .. } => {
                        let was = std::mem::replace(&mut unanswered[rank as usize], false);
                        prop_assert!(was || closed[rank as usize]);
                    }
                    Output::HangUp { rank } => {
                        (closed[rank as usize], unanswered[rank as usize]) = (true, false);
                    }
                    Output::Told(Told::Met { pairs }) => server.handle_met(pairs),
                    // The job ends.
                    Output::Told(Told::Aborted { .. } | Told::Faulty { .. }) => over = true,
                    Output::Told(_) => {}
                }
            }
            let waits = unanswered.iter().filter(|unanswered| **unanswered).count();
            prop_assert!(over || waits == 0 || !closed.contains(&true), "{closed:?}");
            prop_assert!(over || waits < 3, "all have met");
        }
    }

    #[test]
    fn no_bytes_of_a_rank_make_a_server_panic(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20)
    ) {
        let (mut server, mut lines) = (begun(0..1, 1), Lines::default());
        for piece in pieces {
            lines.push(&piece);
            while let Ok(Some(line)) = lines.next() {
                prop_assert!(!line.contains(&b'\n'));
                server.handle_line(0, Ok(&line));
            }
        }
    }
}
