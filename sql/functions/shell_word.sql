-- shell_word: a text as one word of a shell's command line; quoted only if it must be.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why's reasons; not for users.
create or replace function pgqueue.shell_word(p_text text) returns text
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
begin
  if p_text ~ '^[A-Za-z0-9_.:@%+=/][A-Za-z0-9_.:@%+=/-]*$' then return p_text; end if;
  return '''' || replace(p_text, '''', '''\''''') || '''';
end
$$;
comment on function pgqueue.shell_word is 'A text as a word of a command line. Not for users.';
