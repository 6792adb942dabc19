use super::*;

/// What rustc 1.95 made of a put of eight bytes with range checks and a cold far path.
const PUT: &str = include_str!("../../fixtures/put.s");
const NAME: &str = "rma_asm_probe_put";

fn judged(text: &str) -> Report {
    judge(&Function::find(text, NAME).unwrap(), 26).unwrap()
}

/// A probe with this body.
fn probe(body: &str) -> String {
    format!("_RNvCs1_5bench17rma_asm_probe_put:\n{body}\n.Lfunc_end0:\n\tcall\tother\n")
}

#[test]
fn counts_the_near_path_of_real_assembly() {
    let report = judged(PUT);
    assert_eq!(report.complaints, Vec::<String>::new());
    assert_eq!(report.count, 19);
    assert!(report.listing.contains("  16  mov qword ptr [rax], rcx"), "{}", report.listing);
    assert!(report.listing.ends_with("  19  ret"), "{}", report.listing);
    assert!(!report.listing.contains("far_cold"), "{}", report.listing);
}

#[test]
fn a_function_that_was_merged_with_an_equal_one_is_found() {
    let name = "rma_asm_probe_kept_put";
    let text =
        format!("{}\t.set\t_RNvCs1_5bench22{name}, _RNvCs1_5bench17{NAME}\n", probe("\tret"));
    let merged = judge(&Function::find(&text, name).unwrap(), 26).unwrap();
    assert_eq!((merged.count, merged.complaints), (1, vec![]));
    assert!(Function::find(&probe("\tret"), name).is_err());
}

#[test]
fn a_guard_that_is_kept_may_cost_no_instruction() {
    assert_eq!(costlier(25, 25), None);
    assert!(costlier(26, 25).unwrap().contains("26 instructions, and 25"));
}

#[test]
fn a_call_that_is_not_cold_is_refused() {
    let warm = PUT.replace("far_cold", "far_warm");
    let complaints = judged(&warm).complaints;
    assert_eq!(complaints, ["the near path calls _ZN1p8far_warm17h8832939a09216b90E"]);
    assert_eq!(judged(&PUT.replace("far_cold", "copy_large")).complaints, Vec::<String>::new());
}

#[test]
fn a_tail_call_and_an_indirect_jump_are_calls() {
    for target in ["somewhere", "rax", "qword ptr [rip + other@GOTPCREL]"] {
        let report = judged(&probe(&format!("\tmov\teax, 1\n\tjmp\t{target}\n")));
        assert_eq!(report.complaints, [format!("the near path calls {target}")]);
    }
    let conditional = judged(&probe("\tjne\tsomewhere\n\tret\n"));
    assert_eq!(conditional.complaints, ["the near path calls somewhere"]);
    let cold = judged(&probe("\tjne\tfetch_cold\n\tnop\n\tret\n"));
    assert_eq!((cold.count, cold.complaints), (3, Vec::new()));
}

#[test]
fn a_call_beside_the_longest_path_is_refused_too() {
    let body = "\tje\t.LBB0_1\n\tnop\n\tnop\n\tnop\n\tret\n.LBB0_1:\n\tcall\tlock\n\tret";
    let report = judged(&probe(body));
    assert_eq!((report.count, report.complaints), (5, vec!["the near path calls lock".into()]));
}

#[test]
fn one_instruction_over_the_budget_is_refused() {
    let body = |count: usize| probe(&format!("{}\tret\n", "\tnop\n".repeat(count - 1)));
    assert_eq!(judged(&body(26)).complaints, Vec::<String>::new());
    assert_eq!(judged(&body(27)).complaints.len(), 1);
}

#[test]
fn the_longest_of_two_ways_counts_and_inline_assembly_with_it() {
    let body = "\
\ttest\tedi, edi
\tje\t.LBB0_2
\tnop
\tjmp\t.LBB0_3
.LBB0_2:
\t#APP
2:
\tmov\tax, 1; mov\tbx, 2  # a comment
\t#NO_APP
\tnop
.LBB0_3:
\tret";
    assert_eq!(judged(&probe(body)).count, 6);
}

#[test]
fn non_temporal_stores_end_with_a_fence() {
    let complaint = |body: &str| {
        let text = probe(body);
        unordered_store(&Function::find(&text, NAME).unwrap())
    };
    let stores = "2:\n\tmovntps\t[rdi], xmm0\n\tdec\teax\n\tjnz\t2b\n";
    assert_eq!(complaint(&format!("{stores}\tsfence\n\tret")), None);
    assert!(complaint(&format!("{stores}\tret")).unwrap().contains("no sfence behind `movntps"));
    assert!(complaint(&format!("{stores}\tcall\tmemcpy\n\tsfence\n\tret")).is_some());
    assert!(complaint(&format!("\tsfence\n{stores}\tret")).is_some(), "before them");
    assert!(complaint("\tsfence\n\tret").unwrap().contains("no non-temporal store"));
}

#[test]
fn a_loop_on_the_near_path_is_refused_and_one_behind_a_cold_call_is_not() {
    let numeric = probe("2:\n\tdec\teax\n\tjne\t2b\n\tret");
    let named = probe(".LBB0_1:\n\tdec\teax\n\tjne\t.LBB0_1\n\tret");
    for text in [numeric, named] {
        let error = judge(&Function::find(&text, NAME).unwrap(), 26).err().unwrap().to_string();
        assert!(error.contains("holds a loop"), "{error}");
    }
    let cold = probe("\tjne\t3f\n\tret\n3:\n\tcall\tfar_cold\n.LBB0_2:\n\tjmp\t.LBB0_2");
    assert_eq!(judged(&cold).count, 2);
}

#[test]
fn a_probe_without_a_near_path_or_without_a_body_is_an_error() {
    let all_cold = probe("\tcall\tfar_cold\n\tret");
    let error = judge(&Function::find(&all_cold, NAME).unwrap(), 26).err().unwrap().to_string();
    assert!(error.contains("is lost"), "{error}");
    assert!(Function::find(PUT, "rma_asm_probe_get").is_err());
    assert!(Function::find("", NAME).is_err());
    let twice = format!("{PUT}{}", probe("\tret"));
    assert!(Function::find(&twice, NAME).unwrap_err().to_string().contains("several"));
}

#[test]
fn a_conditional_jump_to_a_cold_function_leaves_the_rest_near() {
    let near = judged(&probe("\tcmp\trdi, 3\n\tjae\tfetch_cold\n\tmov\trax, rdi\n\tret"));
    assert_eq!(near.complaints, Vec::<String>::new());
    assert_eq!(near.count, 4);
    let call = judged(&probe("\tcmp\trdi, 3\n\tjae\tfetch_warm\n\tmov\trax, rdi\n\tret"));
    assert_eq!(call.complaints, ["the near path calls fetch_warm"]);
}
