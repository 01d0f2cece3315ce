-- checks: the checks of doctor as readers may see them: without the text of anybody's query.
--
-- Moves nothing. Locks nothing. Raises nothing of its own.
-- Called by operators and readers: the alerts of the web page.
create or replace function pgqueue.checks() returns table (name text, verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select d.name, d.verdict,
           case when d.name = 'snapshots' and d.verdict <> 'ok'
                then left(d.finding, strpos(d.finding, ' transactions ago') + length(' transactions ago') - 1) else d.finding end,
           d.remedy
    from pgqueue.doctor() d;
end
$$;
comment on function pgqueue.checks is 'The checks of doctor, without the queries of others.';
