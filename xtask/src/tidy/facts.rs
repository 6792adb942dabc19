//! What the checks want to know about one Rust file, read from its syntax tree.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use std::collections::HashMap;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

/// Something at a line; `test` is set inside `#[cfg(test)]` and `#[test]` items.
pub(crate) struct At<T> {
    pub(crate) line: usize,
    pub(crate) test: bool,
    pub(crate) what: T,
}

/// A function and its length.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) lines: usize,
}

/// A `static`.
pub(crate) struct Static {
    pub(crate) name: String,
    pub(crate) mutable: bool,
    /// Every identifier in its type.
    pub(crate) type_words: Vec<String>,
}

/// What one file says.
#[derive(Default)]
pub(crate) struct Facts {
    /// Paths, with the file's `use` aliases resolved: `std::env::var`.
    pub(crate) paths: Vec<At<String>>,
    /// Macros called: `println`.
    pub(crate) macros: Vec<At<String>>,
    /// Blocks, functions, impls, traits, attributes that say `unsafe`.
    pub(crate) unsafes: Vec<At<&'static str>>,
    /// `allow(unsafe_code)`, on the file or on an item.
    pub(crate) allows_unsafe: Vec<At<()>>,
    /// Functions.
    pub(crate) functions: Vec<At<Function>>,
    /// Methods of types and traits, each with the name of its type.
    pub(crate) methods: Vec<At<(String, String)>>,
    /// Structs, enums, traits and aliases that are defined here.
    pub(crate) types: Vec<At<String>>,
    /// Methods called: `flush` of `queue.flush()`.
    pub(crate) calls: Vec<At<String>>,
    /// Statics.
    pub(crate) statics: Vec<At<Static>>,
    /// Every identifier, of macros too.
    pub(crate) names: Vec<At<String>>,
    /// String literals other than documentation.
    pub(crate) strings: Vec<At<String>>,
    /// `#[ignore]`.
    pub(crate) ignores: Vec<At<()>>,
    /// `#[cfg(test)] mod name;`, whose file is test code as well.
    pub(crate) test_modules: Vec<String>,
}

impl Facts {
    /// Reads `text`; `test` says that the whole file is test code.
    pub(crate) fn parse(text: &str, test: bool) -> syn::Result<Self> {
        let file = syn::parse_file(text)?;
        let mut aliases = Aliases::default();
        aliases.visit_file(&file);
        let mut reader = Reader {
            facts: Self::default(),
            aliases: aliases.names,
            test: test || is_test(&file.attrs),
        };
        reader.visit_file(&file);
        // `syn` has read the same text.
        let tokens = text.parse().unwrap_or_default();
        reader.facts.names = names(tokens);
        Ok(reader.facts)
    }
}

/// First pass: local name to full path.
#[derive(Default)]
struct Aliases {
    names: HashMap<String, String>,
}

impl<'ast> Visit<'ast> for Aliases {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for (path, local) in flatten(&item.tree) {
            if let Some(local) = local {
                self.names.insert(local, path);
            }
        }
    }
}

/// Full path and local name of every leaf of a `use`.
fn flatten(tree: &UseTree) -> Vec<(String, Option<String>)> {
    match tree {
        UseTree::Path(path) => {
            let head = path.ident.to_string();
            let tails = flatten(&path.tree).into_iter();
            tails
                .map(|(tail, local)| {
                    if tail == "self" {
                        let local = if local.as_deref() == Some("self") {
                            Some(head.clone())
                        } else {
                            local
                        };
                        (head.clone(), local)
                    } else {
                        (format!("{head}::{tail}"), local)
                    }
                })
                .collect()
        }
        UseTree::Name(name) => vec![(name.ident.to_string(), Some(name.ident.to_string()))],
        UseTree::Rename(rename) => {
            vec![(rename.ident.to_string(), Some(rename.rename.to_string()))]
        }
        UseTree::Glob(_) => vec![("*".into(), None)],
        UseTree::Group(group) => group.items.iter().flat_map(flatten).collect(),
    }
}

/// Second pass.
struct Reader {
    facts: Facts,
    aliases: HashMap<String, String>,
    test: bool,
}

impl Reader {
    fn at<T>(&self, span: Span, what: T) -> At<T> {
        At { line: span.start().line, test: self.test, what }
    }

    fn path(&mut self, span: Span, segments: &[String]) {
        let Some((first, rest)) = segments.split_first() else { return };
        let mut full = self.aliases.get(first).unwrap_or(first).clone();
        for segment in rest {
            full.push_str("::");
            full.push_str(segment);
        }
        let fact = self.at(span, full);
        self.facts.paths.push(fact);
    }

    fn unsafe_at(&mut self, span: Span, what: &'static str) {
        let fact = self.at(span, what);
        self.facts.unsafes.push(fact);
    }

    fn function(&mut self, signature: &syn::Signature, end: Span) {
        if let Some(token) = signature.unsafety {
            self.unsafe_at(token.span, "unsafe fn");
        }
        let lines = end.end().line - signature.span().start().line + 1;
        let function = Function { name: signature.ident.to_string(), lines };
        let fact = self.at(signature.span(), function);
        self.facts.functions.push(fact);
    }

    /// Reads what a macro was given, which need not be Rust.
    fn tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let mut next = 0;
        while let Some(tree) = trees.get(next) {
            next += 1;
            match tree {
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    self.unsafe_at(ident.span(), "unsafe in a macro");
                }
                TokenTree::Ident(ident) => {
                    let mut segments = vec![ident.to_string()];
                    while let [TokenTree::Punct(a), TokenTree::Punct(b), TokenTree::Ident(c), ..] =
                        &trees[next..]
                        && a.as_char() == ':'
                        && b.as_char() == ':'
                    {
                        segments.push(c.to_string());
                        next += 3;
                    }
                    self.path(ident.span(), &segments);
                }
                TokenTree::Literal(literal) => {
                    if let syn::Lit::Str(text) = syn::Lit::new(literal.clone()) {
                        self.string(&text);
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    if let Some(TokenTree::Group(group)) = trees.get(next)
                        && group.delimiter() == Delimiter::Bracket
                        && let Some(TokenTree::Ident(name)) = group.stream().into_iter().next()
                    {
                        next += usize::from(name == "doc");
                        if name == "ignore" {
                            let fact = self.at(name.span(), ());
                            self.facts.ignores.push(fact);
                        }
                    }
                }
                TokenTree::Punct(_) => {}
                TokenTree::Group(group) => self.tokens(group.stream()),
            }
        }
    }

    fn string(&mut self, text: &syn::LitStr) {
        let fact = self.at(text.span(), text.value());
        self.facts.strings.push(fact);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let outer = self.test;
        self.test |= is_test(item_attributes(item));
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        if let Some(name) = name {
            let fact = self.at(name.span(), name.to_string());
            self.facts.types.push(fact);
        }
        visit::visit_item(self, item);
        self.test = outer;
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let path = attribute.path();
        if path.is_ident("doc") {
            return;
        }
        if path.is_ident("ignore") {
            let fact = self.at(attribute.span(), ());
            self.facts.ignores.push(fact);
        }
        if path.is_ident("unsafe") {
            self.unsafe_at(attribute.span(), "unsafe attribute");
        }
        if (path.is_ident("allow") || path.is_ident("expect"))
            && let Meta::List(list) = &attribute.meta
            && words(list.tokens.clone()).iter().any(|word| word == "unsafe_code")
        {
            let fact = self.at(attribute.span(), ());
            self.facts.allows_unsafe.push(fact);
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for (path, _) in flatten(&item.tree) {
            let fact = self.at(item.span(), path);
            self.facts.paths.push(fact);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.path(path.span(), &segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        if let Some(name) = mac.path.segments.last() {
            let fact = self.at(mac.span(), name.ident.to_string());
            self.facts.macros.push(fact);
        }
        self.visit_path(&mac.path);
        self.tokens(mac.tokens.clone());
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let fact = self.at(call.method.span(), call.method.to_string());
        self.facts.calls.push(fact);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.string(text);
    }

    fn visit_expr_unsafe(&mut self, expr: &'ast syn::ExprUnsafe) {
        self.unsafe_at(expr.unsafe_token.span, "unsafe block");
        visit::visit_expr_unsafe(self, expr);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = item.unsafety {
            self.unsafe_at(token.span, "unsafe impl");
        }
        if let syn::Type::Path(of) = &*item.self_ty
            && let Some(of) = of.path.segments.last()
        {
            for item in &item.items {
                if let syn::ImplItem::Fn(method) = item {
                    let names = (of.ident.to_string(), method.sig.ident.to_string());
                    let fact = self.at(method.span(), names);
                    self.facts.methods.push(fact);
                }
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if let Some(token) = item.unsafety {
            self.unsafe_at(token.span, "unsafe trait");
        }
        for method in &item.items {
            if let syn::TraitItem::Fn(method) = method {
                let names = (item.ident.to_string(), method.sig.ident.to_string());
                let fact = self.at(method.span(), names);
                self.facts.methods.push(fact);
            }
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.unsafe_at(item.span(), "extern block");
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let outer = self.test;
        self.test |= is_test(&item.attrs);
        self.function(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
        self.test = outer;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, item.span());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        let mut type_words = Words::default();
        type_words.visit_type(&item.ty);
        let fact = Static {
            name: item.ident.to_string(),
            mutable: matches!(item.mutability, syn::StaticMutability::Mut(_)),
            type_words: type_words.0,
        };
        let fact = self.at(item.span(), fact);
        self.facts.statics.push(fact);
        visit::visit_item_static(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_none() && self.test {
            self.facts.test_modules.push(item.ident.to_string());
        }
        visit::visit_item_mod(self, item);
    }
}

#[derive(Default)]
struct Words(Vec<String>);

impl<'ast> Visit<'ast> for Words {
    fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
        self.0.push(ident.to_string());
    }
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[test]`, or a `cfg` that cannot hold without `test`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => requires_test(list.tokens.clone()),
        _ => false,
    })
}

fn requires_test(tokens: TokenStream) -> bool {
    let mut found = false;
    let mut inside_all = false;
    for tree in tokens {
        match tree {
            TokenTree::Ident(word) => {
                found |= word == "test";
                inside_all = word == "all";
            }
            TokenTree::Group(group) => found |= inside_all && requires_test(group.stream()),
            _ => {}
        }
    }
    found
}

fn names(tokens: TokenStream) -> Vec<At<String>> {
    let mut found = Vec::new();
    let mut groups = vec![tokens];
    while let Some(tokens) = groups.pop() {
        for tree in tokens {
            match tree {
                TokenTree::Ident(name) => {
                    let line = name.span().start().line;
                    found.push(At { line, test: false, what: name.to_string() });
                }
                TokenTree::Group(group) => groups.push(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
    found
}

fn words(tokens: TokenStream) -> Vec<String> {
    let word = |tree| match tree {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    };
    tokens.into_iter().filter_map(word).collect()
}
