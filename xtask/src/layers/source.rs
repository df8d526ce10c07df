//! The modules of a crate: what each defines, imports and names, from its source without tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility};

use crate::process::Failure;

/// A path in source text: `crate::error::PostError` as its segments.
pub(super) struct Name {
    pub(super) segments: Vec<String>,
    pub(super) line: usize,
    /// It continues with a variable of a macro, such as `$module`.
    pub(super) is_open: bool,
}

impl Name {
    /// Returns whether it begins in this crate for certain.
    pub(super) fn is_own(&self) -> bool {
        self.segments.first().is_some_and(|first| ["crate", "self", "super"].contains(&&**first))
    }
}

/// An import of a module or of a function in it.
pub(super) struct Import {
    /// `None` of a glob.
    pub(super) alias: Option<String>,
    pub(super) name: Name,
    /// Others see it as an item of this module.
    pub(super) is_reexport: bool,
}

#[derive(Default)]
pub(super) struct Module {
    pub(super) parent: Option<usize>,
    /// Index of its file.
    pub(super) file: usize,
    pub(super) children: BTreeMap<String, usize>,
    pub(super) items: BTreeSet<String>,
    /// Identifiers in macros and calls of macros, which may define items.
    pub(super) generated: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    pub(super) names: Vec<Name>,
}

/// Returns what is in a file, whose path is relative to the folder of `lib.rs`.
pub(super) type Contents<'a> = dyn Fn(&Path) -> Option<String> + 'a;

/// All modules of a crate; the first one is the root.
#[derive(Default)]
pub(super) struct Source {
    pub(super) modules: Vec<Module>,
    /// Paths relative to the folder of `lib.rs`.
    pub(super) files: Vec<String>,
}

impl Source {
    /// Reads `lib.rs` and the files of its modules. `contents` returns what is in a file, `None` if
    /// there is no such file.
    pub(super) fn read(contents: &Contents<'_>) -> Result<Self, Failure> {
        let mut source = Self::default();
        source.modules.push(Module::default());
        source.read_file(Path::new("lib.rs"), contents, Path::new(""), 0)?;
        Ok(source)
    }

    /// Reads the file of a module whose children are in `children`.
    fn read_file(
        &mut self,
        path: &Path,
        contents: &Contents<'_>,
        children: &Path,
        module: usize,
    ) -> Result<(), Failure> {
        let failed =
            |error: &dyn fmt::Display| Failure::Found(format!("{}: {error}", path.display()));
        let text = contents(path).ok_or_else(|| failed(&"cannot be read"))?;
        let file = syn::parse_file(&text).map_err(|error| failed(&error))?;
        self.modules[module].file = self.files.len();
        self.files.push(path.display().to_string());
        self.read_items(&file.items, contents, children, module)
    }

    fn read_items(
        &mut self,
        items: &[Item],
        contents: &Contents<'_>,
        children: &Path,
        module: usize,
    ) -> Result<(), Failure> {
        for item in items {
            if attributes_of(item).iter().any(is_test) {
                continue;
            }
            if let Item::Mod(item) = item {
                self.read_module(item, contents, children, module)?;
                continue;
            }
            let module = &mut self.modules[module];
            module.items.extend(defined_by(item));
            if let Item::Macro(call) = item {
                add_identifiers(&call.mac.tokens, &mut module.generated);
            }
            Reader { module }.visit_item(item);
        }
        Ok(())
    }

    fn read_module(
        &mut self,
        item: &ItemMod,
        contents: &Contents<'_>,
        children: &Path,
        parent: usize,
    ) -> Result<(), Failure> {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            let text = format!("{}: #[path] is not supported", children.display());
            return Err(Failure::Found(text));
        }
        let name = item.ident.to_string();
        let module = self.modules.len();
        let file = self.modules[parent].file;
        self.modules.push(Module { parent: Some(parent), file, ..Module::default() });
        self.modules[parent].children.insert(name.clone(), module);
        let below = children.join(&name);
        if let Some((_, items)) = &item.content {
            return self.read_items(items, contents, &below, module);
        }
        let beside = children.join(format!("{name}.rs"));
        let path = if contents(&beside).is_some() { beside } else { below.join("mod.rs") };
        self.read_file(&path, contents, &below, module)
    }
}

/// Collects the names and imports of an item of a module.
struct Reader<'m> {
    module: &'m mut Module,
}

impl Reader<'_> {
    fn add(&mut self, segments: Vec<String>, span: Span, is_open: bool) {
        let line = span.start().line;
        self.module.names.push(Name { segments, line, is_open });
    }

    fn add_tree(&mut self, tree: &UseTree, before: &[String], is_reexport: bool) {
        let line = tree.span().start().line;
        let (segment, alias) = match tree {
            UseTree::Path(path) => {
                let path_to = [before, &[path.ident.to_string()]].concat();
                return self.add_tree(&path.tree, &path_to, is_reexport);
            }
            UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.add_tree(tree, before, is_reexport));
            }
            UseTree::Glob(_) => (None, None),
            UseTree::Name(name) if name.ident == "self" => (None, before.last().cloned()),
            UseTree::Name(name) => (Some(name.ident.to_string()), Some(name.ident.to_string())),
            UseTree::Rename(name) => {
                let of = (name.ident != "self").then(|| name.ident.to_string());
                (of, Some(name.rename.to_string()))
            }
        };
        let segments = before.iter().cloned().chain(segment).collect();
        let name = Name { segments, line, is_open: false };
        self.module.imports.push(Import { alias, name, is_reexport });
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if !attributes_of(item).iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !attributes.iter().any(is_test) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if !field.attrs.iter().any(is_test) {
            visit::visit_field(self, field);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        self.add_tree(&item.tree, &[], is_reexport);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(segments, path.span(), false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        self.visit_path(&call.path);
        self.scan(&call.tokens, &[]);
    }

    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_visibility(&mut self, _: &'a Visibility) {}
}

impl Reader<'_> {
    /// Collects the paths of at least two segments in the tokens of a macro. They are items of a
    /// group of imports if `before` is not empty.
    fn scan(&mut self, tokens: &TokenStream, before: &[String]) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let is = |at: usize, character: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == character);
        let is_separator = |at: usize| is(at, ':') && is(at + 1, ':');
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    self.scan(&group.stream(), &[]);
                    at += 1;
                }
                TokenTree::Ident(ident) => {
                    // The rest of a path that begins with a variable, or a field or method.
                    let continues = at >= 1 && is(at - 1, '.') && !(at >= 2 && is(at - 2, '.'))
                        || at >= 2 && is_separator(at - 2);
                    let is_variable = at >= 1 && is(at - 1, '$') && ident != "crate";
                    let span = ident.span();
                    let mut segments = before.to_vec();
                    segments.push(ident.to_string());
                    at += 1;
                    let mut is_open = false;
                    while is_separator(at) {
                        match tokens.get(at + 2) {
                            Some(TokenTree::Ident(next)) => segments.push(next.to_string()),
                            Some(TokenTree::Group(group))
                                if group.delimiter() == Delimiter::Brace =>
                            {
                                self.scan(&group.stream(), &segments);
                            }
                            Some(TokenTree::Punct(next)) => is_open = next.as_char() == '$',
                            _ => {}
                        }
                        if !matches!(tokens.get(at + 2), Some(TokenTree::Ident(_))) {
                            at += 2;
                            break;
                        }
                        at += 3;
                    }
                    if !continues && !is_variable && (segments.len() > 1 || is_open) {
                        self.add(segments, span, is_open);
                    }
                }
                _ => at += 1,
            }
        }
    }
}

/// Returns the names that an item adds to its module.
fn defined_by(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn add_identifiers(tokens: &TokenStream, identifiers: &mut BTreeSet<String>) {
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(ident) => drop(identifiers.insert(ident.to_string())),
            TokenTree::Group(group) => add_identifiers(&group.stream(), identifiers),
            _ => {}
        }
    }
}

fn attributes_of(item: &Item) -> &[Attribute] {
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
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether an attribute leaves its item out of everything but tests.
fn is_test(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
    list.path.is_ident("cfg") && needs_test(list.tokens.clone())
}

/// Returns whether a condition, or one of those in its `all`, is `test`.
fn needs_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    tokens.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')).any(
        |condition| match condition {
            [TokenTree::Ident(ident)] => ident == "test",
            [TokenTree::Ident(ident), TokenTree::Group(group)] => {
                ident == "all" && needs_test(group.stream())
            }
            _ => false,
        },
    )
}
